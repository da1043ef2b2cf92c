"""The pages of environments: the list, one environment with its servers, its wanted set and its settings, and its forms."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from dashboard.access.authorisation import Right, actor_of
from dashboard.catalog.selectors import model_get
from dashboard.fleet import selectors as select
from dashboard.fleet import services
from dashboard.fleet.checks import CONNECTIONS, Check, check_server, server_add_checked
from dashboard.fleet.sources import check_source
from dashboard.kubernetes.selectors import pod_standings, replicas_of, untold
from dashboard.models import ServerEnvironment
from dashboard.models.environment import CONTROL_HEADER, PRODUCTION
from dashboard.servers.selectors import answers
from dashboard.shared.exceptions import DashboardError, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import SELECTABLE, call_service, page_of, respond, whole_number

_NUMBERS = ("http_port", "grpc_port", "metrics_port", "replicas_min", "replicas_max")
_NOTES = 20  # of deployments that are not over
_SWITCHES = ("driven", "everything", "tls")


@get("environments/", Right.VIEW)
def environments(request: HttpRequest) -> HttpResponse:
    return _environments(request)


def _environments(request: HttpRequest, error: DashboardError | None = None) -> HttpResponse:
    rows = [
        (one, sum(map(answers, one.servers.all())), len(one.servers.all()), select.wishes(one).count())
        for one in select.environments()
    ]
    context = {"rows": rows, "header": CONTROL_HEADER, "refused": error.message if error else "", "form": request.POST}
    if error is not None:
        return render(request, "fleet/environments.html", context, status=status_of(error))
    return respond(request, "fleet/environments", context)


@post("environments/new", Right.ADMINISTER, page="environments")
def environment_new(request: HttpRequest) -> HttpResponse:
    form = request.POST
    try:
        made = services.environment_create(actor=actor_of(request), name=form.get("name", ""), **_settings(form))
    except DashboardError as error:
        return _environments(request, error)
    messages.success(request, f"Environment {made.name} is added. Add its servers, and say what it wants.")
    return redirect("environment", made.name)


@get("environments/<slug:name>/", Right.VIEW)
def environment(request: HttpRequest, name: str) -> HttpResponse:
    return respond(request, "fleet/environment", _context(request, select.environment_get(name)))


def _context(request: HttpRequest, found: ServerEnvironment, told: str = "") -> dict[str, Any]:
    """Return what the page shows. told: a sentence that it shows in another place."""
    models = select.unwanted(found).values_list("name", flat=True)[:SELECTABLE] if found.driven else []
    page = page_of(request, list(found.servers.all()))
    replicas = replicas_of(found, told) if found.in_kubernetes else None
    failed = [found.lookup_error] if found.lookup_error else []
    pods = page_of(request, pod_standings(found, replicas.pods if replicas is not None else []), by="pods")
    return {
        "environment": found,
        "page": page,
        "replicas": replicas,
        "trouble": replicas.trouble if replicas is not None else untold(failed, told),
        "pods": pods,
        "standings": select.standings(found, list(page)),
        "wishes": select.wishes(found),
        "deploying": select.deploying(found)[:_NOTES],
        "governed": select.governed(found),
        "leads_to": select.leads_to(found),
        "models": models,
        "key_trouble": select.key_trouble(found),
        "fixed": found.name == PRODUCTION,
    }


@post("environments/<slug:name>/change", Right.ADMINISTER, page="environment")
def environment_change(request: HttpRequest, name: str) -> HttpResponse:
    """Save the settings of the form, or look up the servers to which they lead."""
    found, form = select.environment_get(name), request.POST
    try:
        given = _settings(form)
        for secret, removed in (("control_key", "no_key"), ("kubernetes_token", "no_token")):
            if not given.get(secret):  # an empty field keeps the secret
                given[secret] = "" if removed in form else None
        change = {"environment": found, "actor": actor_of(request), **given}
        if "check" in form:
            check = check_source(services.environment_with(**change))
            shown = _context(request, found, " ".join(check.problems))
            context = {**shown, "check": check, "checked": "the settings", "typed": form}
            return render(request, "fleet/environment.html", context)
        services.environment_update(**change)
    except DashboardError as error:
        context = {**_context(request, found), "settings_refused": error.message, "typed": request.POST}
        return render(request, "fleet/environment.html", context, status=status_of(error))
    messages.success(request, f"Environment {name} is saved.")
    return redirect("environment", name)


@post("environments/<slug:name>/pin", Right.ADMINISTER)
def environment_pin(request: HttpRequest, name: str) -> HttpResponse:
    found, done = select.environment_get(name), f"{name} wants exactly the releases that it wants now."
    return call_service(request, services.environment_pin, done, "environment", name, environment=found)


@post("environments/<slug:name>/remove", Right.ADMINISTER)
def environment_remove(request: HttpRequest, name: str) -> HttpResponse:
    found, done = select.environment_get(name), f"Environment {name} is removed."
    return call_service(request, services.environment_delete, done, "environments", environment=found)


@post("environments/<slug:name>/servers", Right.ADMINISTER, page="environment")
def environment_server_new(request: HttpRequest, name: str) -> HttpResponse:
    """Check the server of the form, or add it."""
    found, form = select.environment_get(name), request.POST
    given = {key: form.get(key, "") for key in ("name", "address", "grpc", "metrics")}
    check, refused, status = None, "", 200
    try:
        server = services.server_new(environment=found, **given)
        if "check" not in form:
            server_add_checked(server=server, actor=actor_of(request), unchecked="unchecked" in form)
            messages.success(request, f"Server {server.name} is added.")
            return redirect("environment", name)
        check = check_server(server, CONNECTIONS)
    except DashboardError as error:
        refused, status = error.message, status_of(error)
    context = {
        **_context(request, found),
        "check": check,
        "checked": given["address"],
        "refused": refused,
        "form": form,
    }
    return render(request, "fleet/environment.html", context, status=status)


@post("environments/<slug:name>/servers/<slug:server>/check", Right.ADMINISTER, page="environment")
def environment_server_check(request: HttpRequest, name: str, server: str) -> HttpResponse:
    found = select.member_get(name, server)
    check: Check = check_server(found, CONNECTIONS)
    context = {**_context(request, select.environment_get(name)), "check": check, "checked": found.name}
    return render(request, "fleet/environment.html", context)


@post("environments/<slug:name>/servers/<slug:server>/change", Right.ADMINISTER)
def environment_server_change(request: HttpRequest, name: str, server: str) -> HttpResponse:
    given = {key: request.POST.get(key, "") for key in ("address", "grpc", "metrics")}
    done = f"Server {server} is saved."
    found = select.member_get(name, server)
    return call_service(request, services.server_update, done, "environment", name, server=found, **given)


@post("environments/<slug:name>/servers/<slug:server>/zone", Right.ADMINISTER)
def environment_server_zone(request: HttpRequest, name: str, server: str) -> HttpResponse:
    zone, found = request.POST.get("zone", ""), select.member_get(name, server)
    done = f"Server {server} is saved."
    return call_service(request, services.server_place, done, "environment", name, server=found, zone=zone)


@post("environments/<slug:name>/servers/<slug:server>/remove", Right.ADMINISTER)
def environment_server_remove(request: HttpRequest, name: str, server: str) -> HttpResponse:
    done = f"Server {server} is removed."
    return call_service(
        request, services.server_remove, done, "environment", name, server=select.member_get(name, server)
    )


@post("environments/<slug:name>/wanted", Right.OPERATE)
def environment_want(request: HttpRequest, name: str) -> HttpResponse:
    """Want the release of the form, or take its model out of the wanted set."""
    found, form = select.environment_get(name), request.POST
    try:
        model, number = model_get(form.get("model", "")), whole_number(form.get("release", ""))
    except DashboardError as error:
        messages.error(request, sentence(error.message))
        return redirect("environment", name)
    if "remove" in form:
        done = f"{model.name} is taken out."
        return call_service(request, services.wanted_remove, done, "environment", name, environment=found, model=model)
    done = f"{name} wants {model.name}. Its servers load it in some seconds."
    wish = {"environment": found, "model": model, "release": number}
    return call_service(request, services.wanted_set, done, "environment", name, **wish)


def _settings(form: QueryDict) -> dict[str, Any]:
    """Return the settings of a form, as the services take them. Raises Invalid if a number is none."""
    others = {*_SWITCHES, *_NUMBERS}
    texts = [name for name in (*services.SETTINGS, *services.SECRETS, *services.FILES) if name not in others]
    given: dict[str, Any] = {name: form[name] for name in texts if name in form}
    given |= {name: form[name] == "yes" for name in _SWITCHES if name in form}
    numbers = {name: whole_number(str(form[name])) for name in _NUMBERS if name in form}
    return given | {name: number for name, number in numbers.items() if number is not None}

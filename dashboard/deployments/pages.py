"""The pages of deployments: those of an environment, one of them, what a release still misses, and the policy."""

from collections import Counter
from typing import Any

from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render

from dashboard.access.authorisation import Actor, Right, actor_of
from dashboard.catalog.selectors import model_get
from dashboard.deployments import policies, services
from dashboard.deployments.selectors import deployment_get, deployments, served_now
from dashboard.fleet.selectors import environment_get, environments
from dashboard.models import Deployment, Release, ServerEnvironment
from dashboard.models.deployment import UNREACHED, Freeze
from dashboard.releases.selectors import release_get
from dashboard.servers.selectors import answers
from dashboard.shared.choices import StepState
from dashboard.shared.exceptions import DashboardError, Invalid, NotFound, status_of
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of, respond, whole_number

_SERVERS = 200  # on one page


@get("environments/<slug:name>/deployments/", Right.VIEW, name="deployments")
def deployments_of(request: HttpRequest, name: str) -> HttpResponse:
    environment = environment_get(name)
    context = {"environment": environment, "page": page_of(request, deployments(environment))}
    return respond(request, "deployments/deployments", context)


@get("environments/<slug:name>/deployments/new", Right.VIEW)
def deployment_new(request: HttpRequest, name: str) -> HttpResponse:
    """Show what a release of a model still misses, and the form that deploys it."""
    return _new(request, environment_get(name), request.GET)


def _new(
    request: HttpRequest, environment: ServerEnvironment, form: QueryDict, error: DashboardError | None = None
) -> HttpResponse:
    context: dict[str, Any] = {"environment": environment, "form": form, "left_out": form.getlist("leave_out")}
    try:
        release = _release(form)
        context |= {"release": release, **_asked(environment, release, actor_of(request))}
    except DashboardError as wrong:
        error = error or wrong
    if error is None or not form.get("model"):  # nothing is chosen yet
        return render(request, "deployments/new.html", context)
    return render(request, "deployments/new.html", {**context, "refused": error.message}, status=status_of(error))


def _asked(environment: ServerEnvironment, release: Release, actor: Actor) -> dict[str, object]:
    given = policies.approvals(environment, release)
    policy = policies.policy_of(environment)
    servers = sorted(environment.servers.all(), key=lambda one: (one.zone, one.name))
    return {
        "requirements": policies.requirements(environment=environment, release=release, actor=actor),
        "approvals": given,
        "approves": policy is not None and policy.approval,
        "approved": any(one.user == actor.user for one in given),
        "servers": servers,
        "away": [one for one in servers if not answers(one)],
    }


@post("environments/<slug:name>/deployments/start", Right.OPERATE, page="deployment_new")
def deployment_start(request: HttpRequest, name: str) -> HttpResponse:
    environment, form = environment_get(name), request.POST
    try:
        made = services.deployment_start(
            environment=environment,
            model=model_get(form.get("model", "")),
            release=_release(form).number,
            actor=actor_of(request),
            at_once=whole_number(form.get("at_once", "")) or 1,
            leave_out=form.getlist("leave_out"),
            reason=form.get("reason", ""),
        )
    except DashboardError as error:
        return _new(request, environment, form, error)
    return redirect("deployment", name, made.pk)


@get("environments/<slug:name>/deployments/<int:pk>/", Right.VIEW)
def deployment(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    found = _deployment(name, pk)
    steps = found.steps.select_related("server__state")
    states = Counter(steps.values_list("state", flat=True))
    context = {
        "environment": found.environment,
        "deployment": found,
        "page": page_of(request, steps, _SERVERS),
        "serves": served_now(found),
        "away": [
            one.server for one in steps if found.open and one.state != StepState.LEFT_OUT and not answers(one.server)
        ],
        "changed": states[StepState.DONE],
        "out": states[StepState.LEFT_OUT],
        "reached": states.total() - sum(states[state] for state in UNREACHED),
        "all": states.total(),
    }
    return respond(request, "deployments/deployment", context)


@post("environments/<slug:name>/deployments/<int:pk>/stop", Right.OPERATE)
def deployment_stop(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    done, found = "It stopped: no further server is reached.", _deployment(name, pk)
    return call_service(request, services.deployment_stop, done, "deployment", name, pk, deployment=found)


@post("environments/<slug:name>/deployments/<int:pk>/leave-out", Right.OPERATE)
def deployment_leave_out(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    server, found = request.POST.get("server", ""), _deployment(name, pk)
    done, given = f"Server {server} is left out.", {"deployment": found, "server": server}
    return call_service(request, services.deployment_leave_out, done, "deployment", name, pk, **given)


@post("environments/<slug:name>/deployments/<int:pk>/continue", Right.OPERATE)
def deployment_continue(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    done, found = "It goes on.", _deployment(name, pk)
    return call_service(request, services.deployment_continue, done, "deployment", name, pk, deployment=found)


@post("environments/<slug:name>/deployments/<int:pk>/go-back", Right.OPERATE)
def deployment_go_back(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    done, found = "Every server that was reached goes back.", _deployment(name, pk)
    return call_service(request, services.deployment_return, done, "deployment", name, pk, deployment=found)


@post("environments/<slug:name>/approvals", Right.OPERATE, page="deployment_new")
def approval(request: HttpRequest, name: str) -> HttpResponse:
    """Approve the release of the form, or take the approval back."""
    environment, form = environment_get(name), request.POST
    try:
        release = _release(form)
        if "take_back" in form:
            policies.approval_take_back(environment=environment, release=release, actor=actor_of(request))
        else:
            comment = form.get("comment", "")
            policies.approval_give(environment=environment, release=release, actor=actor_of(request), comment=comment)
    except DashboardError as error:
        return _new(request, environment, form, error)
    query = QueryDict(mutable=True)
    query.update({"model": release.model.name, "release": str(release.number)})
    address = redirect("deployment_new", name)
    address["Location"] += f"?{query.urlencode()}"
    return address


@get("environments/<slug:name>/policy/", Right.VIEW)
def policy(request: HttpRequest, name: str) -> HttpResponse:
    return render(request, "deployments/policy.html", _policy(environment_get(name)))


def _policy(environment: ServerEnvironment) -> dict[str, Any]:
    found = policies.policy_of(environment)
    freezes = found.freezes if found is not None else []
    rows = [{"days": one["days"], "start": one["start"], "end": one["end"]} for one in freezes]
    return {
        "environment": environment,
        "policy": found,
        "sources": environments().exclude(pk=environment.pk),
        "freezes": [*rows, {"days": [], "start": "", "end": ""}],
        "days": list(enumerate(policies.DAYS)),
    }


@post("environments/<slug:name>/policy/change", Right.ADMINISTER, page="policy")
def policy_change(request: HttpRequest, name: str) -> HttpResponse:
    environment, form = environment_get(name), request.POST
    if "remove" in form:
        done = f"{name} asks nothing of releases any more."
        return call_service(request, policies.policy_remove, done, "policy", name, environment=environment)
    try:
        source = environment_get(form["source"]) if form.get("source") else None
        policies.policy_set(
            environment=environment,
            actor=actor_of(request),
            source=source,
            golden="golden" in form,
            budget="budget" in form,
            approval="approval" in form,
            freezes=_freezes(form),
            time_zone=form.get("time_zone", "UTC").strip(),
        )
    except DashboardError as error:
        context = {**_policy(environment), "refused": error.message}
        return render(request, "deployments/policy.html", context, status=status_of(error))
    return redirect("policy", name)


def _freezes(form: QueryDict) -> list[Freeze]:
    """Return the freezes of a form; a row without days is none."""
    rows = zip(range(policies.MOST_FREEZES + 1), form.getlist("start"), form.getlist("end"), strict=False)
    found: list[Freeze] = []
    for number, start, end in rows:
        days = [int(day) for day in form.getlist(f"day-{number}") if day.isascii() and day.isdecimal()]
        if days or start or end:
            found.append({"days": days, "start": start, "end": end})
    return found


def _release(form: QueryDict) -> Release:
    """Return the release that a form names. Raises Invalid, NotFound."""
    number = whole_number(form.get("release", ""))
    if number is None:
        raise Invalid.at("release", "say which release")
    return release_get(model_get(form.get("model", "")), number)


def _deployment(environment: str, pk: int) -> Deployment:
    found = deployment_get(pk)
    if found.environment.name != environment:
        raise NotFound(f"environment {environment} has no deployment {pk}")
    return found

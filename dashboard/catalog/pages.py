"""The pages of models: the list of models, and for each model its charts, versions, activity, log and actions."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict
from urllib.parse import quote

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.functional import SimpleLazyObject

from dashboard.access.authorisation import Right, actor_of
from dashboard.access.happenings import Filter, changes, happenings
from dashboard.catalog import selectors as select
from dashboard.catalog import services as model_services
from dashboard.catalog.selectors import unmanaged_models
from dashboard.catalog.traits import traits_of
from dashboard.metrics.outages import outage_sentence
from dashboard.metrics.pages import EACH, SERVERS
from dashboard.metrics.recent import NO_NUMBERS, recent_numbers
from dashboard.models import Model, Release, Version
from dashboard.models.environment import PRODUCTION
from dashboard.plugins.table import PLUGINS
from dashboard.releases.selectors import current_document, releases_served, way_back
from dashboard.releases.signatures import answering_version
from dashboard.servers.consumers import MODEL_LINES
from dashboard.servers.selectors import environment_of, gpu_count, model_states, production_servers, servers
from dashboard.shared.choices import DesiredState
from dashboard.shared.exceptions import Invalid
from dashboard.shared.model_logs import model_log_tail
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, page_of, respond, sorted_rows

SHOWN = 100  # the most models on one page of the list
TAGS = 50  # the list can be filtered by this many of the most common tags
CHOSEN_RELEASES = 20  # the most releases that charts can be limited to
CHOSEN_VERSIONS = 50  # the most versions that charts can be limited to
_STATE_ORDER = ("failed", "degraded", "loading", "unloading", "ready", "asleep", "unloaded")


@get("models/", Right.VIEW)
def models(request: HttpRequest) -> HttpResponse:
    search, tag = request.GET.get("q", "").strip(), request.GET.get("tag", "")
    everything = select.models_standing()
    fitting = [row for row in everything if (not tag or tag in row.tags) and _matches(row, search)]
    ordered, sort = _sorted(fitting, request.GET.get("sort", ""))
    page = page_of(request, ordered, SHOWN)
    numbers = recent_numbers([row.name for row in page])
    context = {
        "sources": [source for plugin in PLUGINS for source in plugin.model_sources],
        "unmanaged": unmanaged_models(),
        "page": page,
        "rows": [(row, numbers[row.name]) for row in select.summaries_of(page)],
        "total": len(everything),
        "tags": _offered_tags(everything, tag),
        "search": search,
        "tag": tag,
        "sort": sort,
    }
    return respond(request, "catalog/models", context)


def _sorted(rows: list[select.Standing], wanted: str) -> tuple[list[select.Standing], str]:
    """Sort the list. The figures of every model are read only if the list is sorted by a figure."""
    by_figure = wanted.removeprefix("-") in ("rps", "p99", "errors")
    numbers = recent_numbers([row.name for row in rows], sparks=False) if by_figure else {}
    keys = {
        "name": lambda row: row.name.lower(),
        "state": lambda row: (_STATE_ORDER.index(row.state), row.name.lower()),
        "rps": lambda row: numbers[row.name].rps,
        "p99": lambda row: numbers[row.name].p99,
        "errors": lambda row: numbers[row.name].error_share,
    }
    return sorted_rows(rows, wanted, keys, "name")


def _offered_tags(rows: Sequence[select.Standing], chosen: str) -> list[str]:
    """Return the most common tags, and the chosen one."""
    counts = Counter(tag for row in rows for tag in row.tags)
    return sorted({*(tag for tag, _ in counts.most_common(TAGS)), *([chosen] if chosen in counts else [])})


def _matches(row: select.Standing, search: str) -> bool:
    text = f"{row.name} {row.backend} {row.state} {' '.join(row.tags)}".lower()
    return all(word in text for word in search.lower().split())


class ModelContext(TypedDict):
    """The context of the head of every page about one model."""

    model: Model
    summary: select.ModelSummary
    way_back: Release | None
    tab: str


def model_context(name: str, tab: str) -> ModelContext:
    """Return the context of the head. tab: the page that is shown. Raises NotFound if there is no model of that name."""
    model = select.model_get(name)
    return {
        "model": model,
        "summary": select.model_summary(model),
        "way_back": way_back(model),
        "tab": tab,
    }


@get("models/<str:name>/", Right.VIEW)
def model(request: HttpRequest, name: str) -> HttpResponse:
    head = model_context(name, "overview")
    found = head["model"]
    versions, charted = list(select.versions(found)), _charted(request.GET)
    drawn = request.GET.get("version", EACH if len(head["summary"].loaded_versions) > 1 else "")
    context = {
        **head,
        "numbers": recent_numbers([name]).get(name, NO_NUMBERS),
        "states": model_states(model_name=name),
        "traits": traits_of(current_document(found)),
        **_shown_signature(found, versions),
        "outage": SimpleLazyObject(lambda: outage_sentence(list(production_servers()), model_name=name)),
        "has_gpu": SimpleLazyObject(lambda: any(map(gpu_count, servers()))),
        "chart_versions": numbers if len(numbers := [row.number for row in versions][:CHOSEN_VERSIONS]) > 1 else [],
        "chart_version": "" if drawn == SERVERS and not charted["several_servers"] else drawn,
        **charted,
        "chart_releases": SimpleLazyObject(lambda: releases_served(found, CHOSEN_RELEASES)),
        "changes": changes(model=found)[:6],
    }
    return respond(request, "catalog/model/overview", context, parts=("now", "rows"))


def _charted(query: Mapping[str, str]) -> dict[str, object]:
    """Return the servers that charts can show by environment, and what is chosen: a server or an environment."""
    found: dict[str, list[str]] = {PRODUCTION: []}
    for one in servers():
        found.setdefault(environment_of(one), []).append(one.name)
    server, environment = query.get("server", ""), query.get("environment", PRODUCTION)
    chosen = server if any(server in names for names in found.values()) else ""
    environment = environment if environment in found else PRODUCTION
    alone = chosen or len(found[environment]) < 2
    return {
        "chart_servers": found if sum(map(len, found.values())) > 1 else {},
        "chart_server": chosen,
        "several_servers": not alone,
        "chart_environment": "" if chosen else environment,
        "memory_label": f"Memory of the {'server' if alone else 'servers together'}",
    }


def _shown_signature(model: Model, versions: Sequence[Version]) -> dict[str, object]:
    """Return the version whose tensors are shown: the version that answers requests without a version, else the newest."""
    found = answering_version(model) if model.desired_state == DesiredState.LOADED else None
    return {"shown": found or (versions[0] if versions else None), "shown_answers": found is not None}


@get("models/<str:name>/head", Right.VIEW)
def model_head(request: HttpRequest, name: str) -> HttpResponse:
    """Show only the head, which every tab refreshes."""
    return respond(request, "catalog/model/head", model_context(name, request.GET.get("tab", "overview")))


@get("models/<str:name>/activity", Right.VIEW)
def model_activity(request: HttpRequest, name: str) -> HttpResponse:
    return _activity(request, name)


def _activity(request: HttpRequest, name: str, described: Mapping[str, str] | None = None) -> HttpResponse:
    """Show the activity. described: a refused description with its tags, and the reason of the refusal."""
    head = model_context(name, "activity")
    model = head["model"]
    context = {
        **head,
        "entries": page_of(request, happenings(Filter(model=name))),
        "described": described or {"description": model.description, "tags": ", ".join(model.tags)},
    }
    response = respond(request, "catalog/model/activity", context)
    response.status_code = 400 if described else 200
    return response


@get("models/<str:name>/log", Right.VIEW)
def model_log(request: HttpRequest, name: str) -> HttpResponse:
    context = {
        **model_context(name, "log"),
        "lines": model_log_tail(name, MODEL_LINES),
        "socket": f"/ws/models/{quote(name, safe='')}/log/",
        "servers": servers(),
    }
    return render(request, "catalog/model/log.html", context)


@post("models/<str:name>/load", Right.OPERATE)
def model_load(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    done = f"{name} is being loaded. Its state above follows."
    return call_service(request, model_services.model_load, done, "model", name, model=model)


@post("models/<str:name>/unload", Right.OPERATE)
def model_unload(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    done = f"{name} is being taken out of service. Requests under way are finished first."
    return call_service(request, model_services.model_unload, done, "model", name, model=model)


@post("models/<str:name>/describe", Right.OPERATE, page="model_activity")
def model_describe(request: HttpRequest, name: str) -> HttpResponse:
    model = select.model_get(name)
    tags = [tag.strip() for tag in request.POST.get("tags", "").split(",") if tag.strip()]
    text = request.POST.get("description", "").strip()
    try:
        model_services.model_describe(model=model, actor=actor_of(request), description=text, tags=tags)
    except Invalid as error:
        return _activity(
            request, name, {"description": text, "tags": ", ".join(tags), "error": sentence(error.message)}
        )
    messages.success(request, "The description is saved.")
    return redirect("model", name)


@post("models/<str:name>/delete", Right.OPERATE)
def model_delete(request: HttpRequest, name: str) -> HttpResponse:
    given = {"model": select.model_get(name), "confirm_name": request.POST.get("confirm", "")}
    return call_service(
        request, model_services.model_delete, f"{name} is deleted, with all its files.", "models", **given
    )

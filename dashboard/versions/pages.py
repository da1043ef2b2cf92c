"""The pages of a model's versions: the list, and its acts: make live, go back, name, keep, archive, restore, note."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.functional import SimpleLazyObject

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog import selectors as select
from dashboard.catalog.archives import archive_of
from dashboard.catalog.pages import model_context
from dashboard.catalog.spread import SERVING, Spread
from dashboard.configuration.editor import base_release
from dashboard.configuration.version_settings import fields_of_version, version_settings_apply, versions_with_settings
from dashboard.jobs.selectors import jobs
from dashboard.jobs.services import UNFINISHED
from dashboard.models import Model, ModelState
from dashboard.releases.budgets import newest_figures
from dashboard.releases.gates import gates_in_words
from dashboard.releases.replay_gates import gate_capture
from dashboard.releases.selectors import newest_release, protected_versions, release_get
from dashboard.servers.selectors import model_states, of_production
from dashboard.shared.choices import VersionState, version_word
from dashboard.shared.exceptions import DashboardError, Invalid, NamesMoved, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.versions import services as version_services
from dashboard.versions.moves import version_archive as archive
from dashboard.versions.moves import version_restore as restore
from dashboard.versions.promotion import promotion
from dashboard.versions.retention import expendable_versions, retention_set, rule_in_words
from dashboard.web.addresses import get, get_and_post, post
from dashboard.web.pages import SELECTABLE, call_service, page_of, respond, whole_number

UNDER_WAY = 20  # the most jobs of the model that are shown above its versions


@get("models/<str:name>/versions", Right.VIEW)
def model_versions(request: HttpRequest, name: str) -> HttpResponse:
    return _versions(request, name)


def _versions(
    request: HttpRequest, name: str, typed: Mapping[str, object] | None = None, status: int = 200
) -> HttpResponse:
    """Show the versions. typed: the fields of a form that was refused, and the reason."""
    head = model_context(name, "versions")
    model, newest = head["model"], newest_release(head["model"])
    told = list(model_states(model_name=name).filter(of_production("server__")))
    states = on_most_servers(told)
    versions = page_of(request, select.versions(model))
    context = {
        **head,
        "page": versions,
        "versions": [(version, states.get(version.number)) for version in versions],
        "partly": _partly(head["summary"], told),
        "protected": protected_versions(model, head["way_back"]),
        "own_settings": versions_with_settings(model),
        "measured": newest_figures(versions),
        "named": _names_of(newest.aliases if newest else {}),
        "aliases": list(newest.aliases.items()) if newest else [],
        "base_release": newest.number if newest else 0,
        "published": numbers if len(numbers := model.published_numbers()) <= SELECTABLE else None,
        "retention": model.retention,
        "rule": rule_in_words(model.retention),
        "expendable": SimpleLazyObject(lambda: expendable_versions(model)),
        "under_way": jobs(model=model).filter(state__in=UNFINISHED)[:UNDER_WAY],
        **(typed or {}),
    }
    response = respond(request, "versions/versions", context)
    response.status_code = status
    return response


def on_most_servers(rows: Iterable[ModelState]) -> dict[int, ModelState]:
    """Return the state that each version has on most servers, as live messages tell it."""
    several: dict[int, dict[str, list[ModelState]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        several[row.version][version_word(row.state, row.condition, row.failed)].append(row)
    return {version: max(words.values(), key=len)[0] for version, words in several.items()}


def _partly(summary: select.ModelSummary, rows: Iterable[ModelState]) -> dict[int, Spread]:
    """Return where each wanted version serves, if the model serves on some of several servers only."""
    if not summary.spread.partial:
        return {}
    serving = Counter(row.version for row in rows if row.word in SERVING)
    return {number: Spread(serving[number], summary.spread.servers) for number in summary.wanted_versions}


def _names_of(aliases: Mapping[str, int]) -> dict[int, list[str]]:
    """Return the aliases of each version."""
    names: dict[int, list[str]] = defaultdict(list)
    for alias, number in sorted(aliases.items()):
        names[number].append(alias)
    return dict(names)


@get("models/<str:name>/versions/<int:number>/model-archive", Right.VIEW)
def model_archive(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Show the contents of a version's archive; ?file=NAME shows one of its texts in place of the handler."""
    head = model_context(name, "versions")
    version = select.version_get(head["model"], number)
    context = {**head, "version": version, "archive": archive_of(version, request.GET.get("file", ""))}
    return render(request, "versions/model_archive.html", context)


class Typed(NamedTuple):
    """A setting of a version in its form. typed: the text of its field. wrong: why that text is not valid, or ""."""

    name: str
    label: str
    hint: str
    otherwise: int | None
    said_by: str
    typed: str
    wrong: str


@get_and_post("models/<str:name>/versions/<int:number>/settings", Right.VIEW)
def version_settings(request: HttpRequest, name: str, number: int) -> HttpResponse:
    if request.method == "POST":
        return _settings_save(request, name, number)
    return _settings(request, name, number)


@requires(Right.OPERATE)
def _settings_save(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = select.version_get(select.model_get(name), number)
    fields = {
        field.name: request.POST[field.name] for field in fields_of_version(version) if field.name in request.POST
    }
    try:
        version_settings_apply(
            version=version, fields=fields, actor=actor_of(request), base_release=base_release(request)
        )
    except DashboardError as error:
        return _settings(request, name, number, error)
    messages.success(request, f"The settings of version {number} are saved.")
    return redirect("version_settings", name, number)


def _settings(request: HttpRequest, name: str, number: int, error: DashboardError | None = None) -> HttpResponse:
    """Show the settings of a version. error: why the form was refused; its fields keep the typed text."""
    head = model_context(name, "versions")
    version, newest = select.version_get(head["model"], number), newest_release(head["model"])
    problems = {one.field: one.message for one in error.problems} if isinstance(error, Invalid) else {}
    rows = [
        Typed(
            *(row.name, row.label, row.hint, row.otherwise, row.said_by),
            request.POST.get(row.name, "") if error else "" if row.own is None else str(row.own),
            sentence(problems.get(row.name, "")),
        )
        for row in fields_of_version(version)
    ]
    context = {
        **head,
        "version": version,
        "fields": rows,
        "base_release": newest.number if newest else 0,
        "refused": sentence(error.message) if error else "",
    }
    return render(request, "versions/settings.html", context, status=status_of(error) if error else 200)


@get_and_post("models/<str:name>/versions/<int:number>/live", Right.OPERATE)
def version_make_live(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Preview making a version live, with a choice of configurations (GET), or make it live (POST)."""
    head = model_context(name, "versions")
    version = select.version_get(head["model"], number)
    found = promotion(version)
    newest = newest_release(head["model"])
    now, base = newest.number if newest else 0, base_release(request)
    if request.method == "POST" and base not in (None, now):
        messages.warning(request, f"Release {now} came meanwhile. Look again at what making this version live changes.")
        return redirect("version_make_live", name, number)
    if request.method == "GET":
        context = {
            **head,
            "version": version,
            "promotion": found,
            "base_release": now,
            "gates": gates_in_words(head["model"]) if found.may_need_reason else "",
            "gate_capture": gate_capture(head["model"]),
        }
        return render(request, "versions/live.html", context)
    chosen = found.fitting if request.POST.get("config") == "fitting" else None
    document = chosen.document if chosen else None
    given = {"version": version, "document": document, "override": request.POST.get("override", "")}
    done = f"Version {number} is being made live. The present versions serve until it is ready."
    return call_service(request, version_services.release_promote, done, "model_releases", name, **given)


@post("models/<str:name>/aliases", Right.OPERATE, page="model_versions")
def model_aliases(request: HttpRequest, name: str) -> HttpResponse:
    """Set the aliases of versions from a form with `alias` and `number` in each row; a row with only one of them is removed."""
    model, base = select.model_get(name), base_release(request)
    rows = list(zip(request.POST.getlist("alias"), request.POST.getlist("number"), strict=False))
    kept: dict[str, object] = {"aliases": rows}
    if base is not None:
        kept["base_release"] = base
    try:
        wanted = _names_typed(model, rows)
        version_services.aliases_set(model=model, aliases=wanted, actor=actor_of(request), base_release=base)
    except NamesMoved as error:
        moved = {"aliases": list(error.merged.items()), "base_release": error.current_release}
        return _versions(request, name, {**moved, "aliases_error": sentence(error.message)}, status_of(error))
    except DashboardError as error:
        return _versions(request, name, {**kept, "aliases_error": sentence(error.message)}, status_of(error))
    messages.success(request, "The names are being moved. Requests that use them follow as soon as the server knows.")
    return redirect("model_versions", name)


def _names_typed(model: Model, rows: list[tuple[str, str]]) -> dict[str, int]:
    """Return the aliases in a form's rows. Raises Invalid if an alias is given twice, or a new alias has no version."""
    newest, names = newest_release(model), {}
    for alias, typed in ((alias.strip(), typed) for alias, typed in rows):
        number = whole_number(typed)
        if not alias:
            continue
        if alias in names:
            raise Invalid(f"'{alias[:80]}' is in two rows; an alias names one version")
        if number is not None:
            names[alias] = number
        elif newest is None or alias not in newest.aliases:
            raise Invalid(f"choose the version that '{alias[:80]}' is to name")
    return names


@post("models/<str:name>/retention", Right.OPERATE, page="model_versions")
def model_retention(request: HttpRequest, name: str) -> HttpResponse:
    typed = {field: request.POST.get(field, "").strip() for field in ("count", "days")}
    try:
        rule = {field: whole_number(text) for field, text in typed.items()}
        retention_set(model=select.model_get(name), actor=actor_of(request), **rule)
    except DashboardError as error:
        return _versions(
            request, name, {"retention": typed, "retention_error": sentence(error.message)}, status_of(error)
        )
    messages.success(request, "Retention is saved.")
    return redirect("model_versions", name)


@post("models/<str:name>/releases/<int:number>/go-back", Right.OPERATE)
def release_go_back(request: HttpRequest, name: str, number: int) -> HttpResponse:
    model = select.model_get(name)
    given = {"model": model, "release": release_get(model, number)}
    done = f"Going back to release {number}. The present versions serve until it is ready."
    return call_service(request, version_services.release_go_back, done, "model_releases", name, **given)


@post("models/<str:name>/versions/<int:number>/archive", Right.OPERATE)
def version_archive(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = select.version_get(select.model_get(name), number)
    archived = version.state == VersionState.ARCHIVED
    service = restore if archived else archive
    done = f"Version {number} is {'restored; it is not live by that' if archived else 'archived'}."
    return call_service(request, service, done, "model_versions", name, version=version)


@post("models/<str:name>/versions/<int:number>/note", Right.OPERATE)
def version_annotate(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = select.version_get(select.model_get(name), number)
    given = {"version": version, "note": request.POST.get("note", "")}
    done = f"The note of version {number} is saved."
    return call_service(request, version_services.version_annotate, done, "model_versions", name, **given)

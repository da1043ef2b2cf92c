"""The part *Tune* of the page *Benchmark*: a form to start a tuning, its trials as a plot and a table, its result, and the
buttons that apply it."""

from collections.abc import Mapping

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog import selectors as catalog
from dashboard.catalog.pages import model_context
from dashboard.jobs.services import UNFINISHED
from dashboard.measurements.plan import ENCODINGS, INPUTS
from dashboard.models import Tuning, Version
from dashboard.shared.exceptions import DashboardError, Invalid, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.tuning import picture
from dashboard.tuning import selectors as select
from dashboard.tuning.changes import changed_models, difference_of
from dashboard.tuning.plan import DEFAULTS, GOALS
from dashboard.tuning.services import tuning_apply, tuning_canary, tuning_delete, tuning_start
from dashboard.tuning.space import differences
from dashboard.web.addresses import get_and_post, post
from dashboard.web.pages import call_service, page_of, respond, whole_number

SHOWN = 20  # tunings on one page of the list
_CHOICES = {"goal": GOALS, "encoding": ENCODINGS, "inputs": INPUTS}
_NUMBERS = (
    *("p99_ms", "per_second", "clients", "rows", "window_s", "most_windows"),
    *("most_instances", "most_batch", "most_threads", "most_trials", "most_minutes"),
)
_ADDRESS = "models/<str:name>/versions/<int:number>/tune"


@get_and_post(_ADDRESS, Right.VIEW)
def version_tune(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Show the tunings of a version, or start one. ?run=: the one that is shown."""
    if request.method == "POST":
        return _start(request, name, number)
    return _page(request, name, number)


@requires(Right.OPERATE)
def _start(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = catalog.version_get(catalog.model_get(name), number)
    try:
        tuning_start(version=version, actor=actor_of(request), plan=_typed_plan(request.POST))
    except DashboardError as error:
        return _page(request, name, number, error)
    messages.success(request, "The tuning has begun. You can leave this page; it is listed under Jobs.")
    return redirect("version_tune", name, number)


def _page(request: HttpRequest, name: str, number: int, error: DashboardError | None = None) -> HttpResponse:
    """Show the page. error: why the form was refused; its fields keep the typed text."""
    head = model_context(name, "versions")
    version = catalog.version_get(head["model"], number)
    version.model = head["model"]
    shown = _shown(request, version)
    problems = {one.field: sentence(one.message) for one in error.problems} if isinstance(error, Invalid) else {}
    context = {
        **head,
        "version": version,
        "page": page_of(request, select.tunings(version), SHOWN),
        "form": _form(request.POST if error else None),
        "choices": {name: list(words.items()) for name, words in _CHOICES.items()},
        "errors": problems,
        "refused": sentence(error.message) if error else "",
        **(_drawn(shown) if shown is not None else {}),
    }
    response = respond(request, "tuning/tune", context, parts=("body", "section"))
    if error:
        response.status_code = status_of(error)
    return response


def _shown(request: HttpRequest, version: Version) -> Tuning | None:
    """Return the tuning that ?run= names, else the newest one."""
    wanted = whole_number(request.GET.get("run", ""))
    return select.tuning_get(version, wanted) if wanted is not None else select.tunings(version).first()


def _drawn(shown: Tuning) -> dict[str, object]:
    rows, canary = picture.rows_of(shown), select.canary_job(shown)
    return {
        "canary": canary,
        "canary_under_way": canary is not None and canary.state in UNFINISHED,
        "shown": shown,
        "goal": GOALS[shown.plan["goal"]],
        "rows": rows,
        "plot": picture.plot_of(shown, rows),
        "height": picture.HEIGHT,
        "changes": differences(shown, shown.chosen),
        "several": len(shown.steps) > 0,
        "difference": difference_of(shown) if shown.chosen else "",
        "whole_model": changed_models(shown) == [shown.version.model.name],
    }


def _form(typed: Mapping[str, str] | None) -> dict[str, str]:
    """Return the text of each field: as typed, or the defaults."""
    if typed is not None:
        return {name: typed.get(name, "") for name in (*_CHOICES, *_NUMBERS)}
    plan: Mapping[str, object] = DEFAULTS
    return {name: str(plan[name]) for name in _CHOICES} | {name: f"{float(str(plan[name])):g}" for name in _NUMBERS}


def _typed_plan(typed: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a plan that a person typed. Raises Invalid, at the field, if a text is no number."""
    plan: dict[str, object] = {name: typed[name] for name in _CHOICES if name in typed}
    for name in _NUMBERS:
        if text := typed.get(name, "").strip():
            try:
                plan[name] = float(text)
            except ValueError:
                raise Invalid.at(name, f"'{text[:40]}' is not a number") from None
    return plan


@post(f"{_ADDRESS}/<int:pk>/delete", Right.OPERATE)
def tuning_remove(request: HttpRequest, name: str, number: int, pk: int) -> HttpResponse:
    found = _tuning(name, number, pk)
    return call_service(request, tuning_delete, "The tuning is deleted.", "version_tune", name, number, tuning=found)


@post(f"{_ADDRESS}/<int:pk>/apply", Right.OPERATE)
def tuning_use(request: HttpRequest, name: str, number: int, pk: int) -> HttpResponse:
    found = _tuning(name, number, pk)
    done = "The configuration is applied, for all requests."
    return call_service(request, tuning_apply, done, "version_tune", name, number, tuning=found)


@post(f"{_ADDRESS}/<int:pk>/canary", Right.OPERATE)
def tuning_begin_canary(request: HttpRequest, name: str, number: int, pk: int) -> HttpResponse:
    found, override = _tuning(name, number, pk), request.POST.get("override", "")
    done = "The canary is being prepared, by a job."
    return call_service(request, tuning_canary, done, "version_tune", name, number, tuning=found, override=override)


def _tuning(name: str, number: int, pk: int) -> Tuning:
    return select.tuning_get(catalog.version_get(catalog.model_get(name), number), pk)

"""The page *Benchmark* of a version: a form to start a measurement, its progress and figures, earlier ones, and the comparison
of two; the page that compares measurements of any models; and the form of the model's budget."""

from collections.abc import Mapping

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog import selectors as catalog
from dashboard.catalog.pages import model_context
from dashboard.measurements import picture
from dashboard.measurements import selectors as select
from dashboard.measurements.comparison import compare, side_by_side
from dashboard.measurements.plan import BOUNDS, DEFAULTS, ENCODINGS, INPUTS, LOOPS, WHERE
from dashboard.measurements.services import budget_set, document_for, measurement_delete, measurement_start
from dashboard.models import Measurement, Version
from dashboard.models.model import Budget
from dashboard.releases.budgets import in_words, verdict
from dashboard.shared.exceptions import DashboardError, Invalid, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get, get_and_post, post
from dashboard.web.pages import SELECTABLE, back, call_service, page_of, respond, whole_number

SHOWN = 20  # measurements on one page of the list
# Field of the form -> by how much its number is divided, because the form has per cent.
_NUMBERS = {"rows": 1, "window_s": 1, "most_windows": 1, "most_cpu": 100, "most_p99_growth": 100, "most_pending": 1}
_CHOICES = {"where": WHERE, "loop": LOOPS, "encoding": ENCODINGS, "inputs": INPUTS}


@get_and_post("models/<str:name>/versions/<int:number>/benchmark", Right.VIEW)
def version_benchmark(request: HttpRequest, name: str, number: int) -> HttpResponse:
    """Show the measurements of a version, or start one. ?run=: the one that is shown. ?with=: the one to compare it with."""
    if request.method == "POST":
        return _start(request, name, number)
    return _page(request, name, number)


@requires(Right.OPERATE)
def _start(request: HttpRequest, name: str, number: int) -> HttpResponse:
    version = catalog.version_get(catalog.model_get(name), number)
    try:
        measurement_start(version=version, actor=actor_of(request), plan=_typed_plan(request.POST))
    except DashboardError as error:
        return _page(request, name, number, error)
    messages.success(request, "The measurement has begun. You can leave this page; it is listed under Jobs.")
    return redirect("version_benchmark", name, number)


def _page(request: HttpRequest, name: str, number: int, error: DashboardError | None = None) -> HttpResponse:
    """Show the page. error: why the form was refused; its fields keep the typed text."""
    head = model_context(name, "versions")
    version = catalog.version_get(head["model"], number)
    version.model = head["model"]
    rows = page_of(request, select.measurements(version), SHOWN)
    shown = _chosen(request, version)
    problems = {one.field: sentence(one.message) for one in error.problems} if isinstance(error, Invalid) else {}
    judged = verdict(version, document_for(version))
    context = {
        **head,
        "version": version,
        "page": rows,
        "form": _form(request.POST if error else None),
        "choices": {name: list(words.items()) for name, words in _CHOICES.items()},
        "errors": problems,
        "refused": sentence(error.message) if error else "",
        "budget": in_words(version.model.budget) if version.model.budget else "",
        "verdict": judged,
        **(_drawn(request, shown) if shown is not None else {}),
    }
    response = respond(request, "measurements/benchmark", context)
    if error:
        response.status_code = status_of(error)
    return response


def _chosen(request: HttpRequest, version: Version) -> Measurement | None:
    """Return the measurement that ?run= names, else the newest one."""
    wanted = whole_number(request.GET.get("run", ""))
    return select.measurement_get(version, wanted) if wanted is not None else select.measurements(version).first()


def _drawn(request: HttpRequest, shown: Measurement) -> dict[str, object]:
    other = whole_number(request.GET.get("with", ""))
    first = select.comparable_get(shown, other) if other is not None else None
    return {
        "shown": shown,
        "latencies": picture.latency_chart(shown),
        "throughput": picture.throughput_chart(shown),
        "bars": picture.bars(shown),
        "batch_bars": picture.batch_bars(shown),
        "height": picture.HEIGHT,
        "others": select.comparable(shown)[:SELECTABLE],
        "compared": compare(first, shown) if first is not None else None,
        "with": other,
    }


def _form(typed: Mapping[str, str] | None) -> dict[str, str]:
    """Return the text of each field: as typed, or the defaults."""
    if typed is not None:
        return {name: typed.get(name, "") for name in (*_CHOICES, *_NUMBERS, "loads")}
    plan: Mapping[str, object] = DEFAULTS
    found = {name: str(plan[name]) for name in _CHOICES}
    found |= {name: f"{float(str(plan[name])) * factor:g}" for name, factor in _NUMBERS.items()}
    return {**found, "loads": ", ".join(f"{load:g}" for load in DEFAULTS["loads"])}


def _typed_plan(typed: Mapping[str, str]) -> dict[str, object]:
    """Return the fields of a plan that a person typed. Raises Invalid, at the field, if a text is no number."""
    plan: dict[str, object] = {name: typed[name] for name in _CHOICES if name in typed}
    for name, factor in _NUMBERS.items():
        if text := typed.get(name, "").strip():
            number = _number(name, text)
            if factor > 1:
                _refuse_per_cent(name, number)
            plan[name] = number / factor
    plan["loads"] = [
        _number("loads", part) for part in typed.get("loads", "").replace(";", ",").split(",") if part.strip()
    ]
    return plan


def _refuse_per_cent(name: str, per_cent: float) -> None:
    """Raise Invalid, in the unit of the form, for a value outside the bounds of the plan, which has shares."""
    least, most = (100 * bound for bound in BOUNDS[name])
    if not least <= per_cent <= most:
        raise Invalid.at(name, f"expected {least:.10g} to {most:.10g} %")


def _number(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Invalid.at(field, f"'{text.strip()[:40]}' is not a number") from None


@get("benchmarks", Right.VIEW)
def benchmarks(request: HttpRequest) -> HttpResponse:
    """Show measurements of any models side by side. ?run=: one that is chosen, repeated for each."""
    pks = [pk for text in request.GET.getlist("run") if (pk := whole_number(text)) is not None]
    offered = page_of(request, select.measured(), SHOWN)
    context = {
        "page": offered,
        "chosen": pks,
        "compared": side_by_side(select.measured_in_order(pks)) if pks else None,
        "kept": [("run", pk) for pk in pks if pk not in {row.pk for row in offered}],
    }
    return respond(request, "measurements/benchmarks", context)


@post("models/<str:name>/versions/<int:number>/benchmark/<int:pk>/delete", Right.OPERATE)
def benchmark_delete(request: HttpRequest, name: str, number: int, pk: int) -> HttpResponse:
    found = select.measurement_get(catalog.version_get(catalog.model_get(name), number), pk)
    done = "The measurement is deleted."
    return call_service(request, measurement_delete, done, "version_benchmark", name, number, measurement=found)


@post("models/<str:name>/budget", Right.OPERATE)
def model_budget(request: HttpRequest, name: str) -> HttpResponse:
    """Set the budget of a model; two empty fields remove it."""
    model = catalog.model_get(name)
    texts = {field: request.POST.get(field, "").strip() for field in ("p99_ms", "per_second")}
    try:
        budget = Budget(**{field: _number(field, text) for field, text in texts.items() if text})  # type: ignore[typeddict-item]
        budget_set(model=model, actor=actor_of(request), budget=budget)
    except DashboardError as error:
        messages.error(request, sentence(error.message))
    else:
        messages.success(request, "The budget is saved." if budget else "The model has no budget any more.")
    return back(request, "model_versions", name)

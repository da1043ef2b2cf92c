"""The part *Truth* of a model's page *Quality*: the metric of each version with its spread, its form, and a file of labels."""

from collections.abc import Mapping

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog.pages import model_context
from dashboard.catalog.selectors import model_get
from dashboard.models import TruthMetric
from dashboard.shared.choices import TruthKind
from dashboard.shared.exceptions import DashboardError, Invalid, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.truth import selectors as select
from dashboard.truth.picture import bars_of
from dashboard.truth.services import csv_labels, labels_add, metric_set
from dashboard.web.addresses import get_and_post, post
from dashboard.web.pages import back, respond

_FIELDS = ("kind", "output", "expression", "better", "limit", "bound")
_MOST_FILE = 8 << 20


@get_and_post("models/<str:name>/truth", Right.VIEW)
def model_truth(request: HttpRequest, name: str) -> HttpResponse:
    """Show the metric of each version, or set the metric of the model."""
    if request.method == "POST":
        return _set(request, name)
    return _page(request, name)


@requires(Right.OPERATE)
def _set(request: HttpRequest, name: str) -> HttpResponse:
    try:
        metric_set(model=model_get(name), actor=actor_of(request), **_typed(request.POST))  # type: ignore[arg-type]
    except DashboardError as error:
        return _page(request, name, error)
    messages.success(request, "The metric is saved. The labels are being compared with the captured answers.")
    return redirect("model_truth", name)


def _page(request: HttpRequest, name: str, error: DashboardError | None = None) -> HttpResponse:
    head = model_context(name, "quality")
    metric = select.metric_of(head["model"])
    problems = {one.field: sentence(one.message) for one in error.problems} if isinstance(error, Invalid) else {}
    context = {
        **head,
        "metric": metric,
        "counts": select.label_counts(head["model"]),
        "compared": select.compared(metric) if metric is not None else "",
        "bars": bars_of(metric, select.versions_of(metric)) if metric is not None else [],
        "days": select.DAYS,
        "choices": {
            "kind": TruthKind.choices,
            "better": [("higher", "Higher is better"), ("lower", "Lower is better")],
        },
        "form": {field: request.POST.get(field, "") for field in _FIELDS} if error else _form(metric),
        "errors": problems,
        "refused": sentence(error.message) if error else "",
    }
    response = respond(request, "truth/truth", context)
    if error:
        response.status_code = status_of(error)
    return response


def _form(metric: TruthMetric | None) -> dict[str, str]:
    if metric is None:
        return {"kind": "", "output": "", "expression": "", "better": "higher", "limit": "", "bound": ""}
    return {
        "kind": metric.kind,
        "output": metric.output,
        "expression": metric.expression,
        "better": "higher" if metric.higher_is_better else "lower",
        "limit": "" if metric.limit is None else f"{metric.limit:g}",
        "bound": "" if metric.bound is None else f"{metric.bound:g}",
    }


def _typed(typed: Mapping[str, str]) -> dict[str, object]:
    """Return the metric that a person typed. Raises Invalid, at the field, if the limit or the bound is not a number."""
    return {
        "kind": typed.get("kind", ""),
        "output": typed.get("output", "").strip()[:200],
        "expression": typed.get("expression", "").strip(),
        "higher_is_better": typed.get("better") != "lower",
        "limit": _number("limit", typed.get("limit", "").strip()),
        "bound": _number("bound", typed.get("bound", "").strip()),
    }


def _number(field: str, text: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise Invalid.at(field, f"'{text[:40]}' is not a number") from None


@post("models/<str:name>/labels", Right.OPERATE)
def labels_upload(request: HttpRequest, name: str) -> HttpResponse:
    """Store the labels of a CSV file."""
    file = request.FILES.get("file")
    try:
        if file is None or not file.size:
            raise Invalid("choose a CSV file with the columns id and label")
        if file.size > _MOST_FILE:
            raise Invalid("the file has more than 8 MiB: send it in parts")
        added = labels_add(model=model_get(name), actor=actor_of(request), labels=csv_labels(file.read()))
    except DashboardError as error:
        messages.error(request, sentence(error.message))
    else:
        told = f"{added.labels} label{'s are' if added.labels != 1 else ' is'} stored."
        replaced = f" {added.replaced} of them replace earlier ones." if added.replaced else ""
        repeated = f" Of {added.repeated} repeated rows, the last one of each request counts." if added.repeated else ""
        messages.success(request, told + replaced + repeated)
    return back(request, "model_truth", name)

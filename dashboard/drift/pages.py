"""The part *Data drift* of a model's page *Quality*: monitors, the windows of one of them, and the columns of one window."""

from collections.abc import Mapping

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from dashboard.access.authorisation import Right, actor_of, requires
from dashboard.catalog.pages import model_context
from dashboard.catalog.selectors import model_get
from dashboard.drift import picture
from dashboard.drift import selectors as select
from dashboard.drift.comparison import ALPHA, THRESHOLD, ensure_scipy
from dashboard.drift.services import WINDOW, monitor_check, monitor_create, monitor_delete
from dashboard.models import DriftMonitor, DriftWindow, Model
from dashboard.shared.exceptions import DashboardError, Invalid, status_of
from dashboard.templatetags.slipway import sentence
from dashboard.web.addresses import get_and_post, post
from dashboard.web.pages import call_service, page_of, respond, whole_number

SHOWN = 40  # windows on one page
FIRST_DAYS = "first days"  # the choice of a version's first days as the reference
_DEFAULTS = {
    "capture": "",
    "version": "",
    "days": "1",
    "window": str(WINDOW),
    "alpha": f"{100 * ALPHA:g}",
    "threshold": f"{THRESHOLD:g}",
}


@get_and_post("models/<str:name>/data-drift", Right.VIEW)
def model_drift(request: HttpRequest, name: str) -> HttpResponse:
    """Show the monitors of a model, or make one. ?monitor=: the one that is shown. ?window=: the window of it."""
    if request.method == "POST":
        return _create(request, name)
    return _page(request, name)


@requires(Right.OPERATE)
def _create(request: HttpRequest, name: str) -> HttpResponse:
    try:
        monitor = monitor_create(model=model_get(name), actor=actor_of(request), **_typed(request.POST))  # type: ignore[arg-type]
    except DashboardError as error:
        return _page(request, name, error)
    messages.success(request, "The monitor is made. The windows that were captured already are being compared.")
    return redirect(f"{reverse('model_drift', args=[name])}?monitor={monitor.pk}")


def _page(request: HttpRequest, name: str, error: DashboardError | None = None) -> HttpResponse:
    head = model_context(name, "quality")
    model = head["model"]
    monitors = list(select.monitors(model))
    shown = _chosen(request, model, monitors)
    problems = {one.field: sentence(one.message) for one in error.problems} if isinstance(error, Invalid) else {}
    context = {
        **head,
        "monitors": monitors,
        "shown": shown,
        "references": select.references(model),
        "first_days": FIRST_DAYS,
        "missing": _missing(),
        "form": {field: request.POST.get(field, "") for field in _DEFAULTS} if error else _DEFAULTS,
        "errors": problems,
        "refused": sentence(error.message) if error else "",
        **(_drawn(request, shown) if shown is not None else {}),
    }
    response = respond(request, "drift/drift", context)
    if error:
        response.status_code = status_of(error)
    return response


def _missing() -> str:
    """Return a sentence that says what to install; "" if nothing is missing."""
    try:
        ensure_scipy()
    except Invalid as error:
        return sentence(error.message)
    return ""


def _chosen(request: HttpRequest, model: Model, monitors: list[DriftMonitor]) -> DriftMonitor | None:
    """Return the monitor that ?monitor= names, else one that found drift, else the newest one."""
    wanted = whole_number(request.GET.get("monitor", ""))
    if wanted is not None:
        return select.monitor_get(model, wanted)
    return next((one for one in monitors if one.state == "drifted"), monitors[0] if monitors else None)


def _drawn(request: HttpRequest, shown: DriftMonitor) -> dict[str, object]:
    page = page_of(request, select.windows(shown), SHOWN)
    wanted = whole_number(request.GET.get("window", ""))
    window: DriftWindow | None = (
        select.window_get(shown, wanted) if wanted is not None else next(iter(page.object_list), None)
    )
    actor = actor_of(request)
    return {
        "page": page,
        "row": picture.row_of(list(page.object_list)),
        "window": window,
        "columns": picture.drawn_columns(select.drawn(window, actor)) if window is not None else [],
        "sees_values": select.may_see_values(actor, shown.model),
        "height": picture.HEIGHT,
    }


def _typed(typed: Mapping[str, str]) -> dict[str, object]:
    """Return the arguments of a monitor that a person typed. Raises Invalid, at the field, if a text is no number."""
    capture = typed.get("capture", "")
    first_days = capture == FIRST_DAYS
    return {
        "capture": "" if first_days else capture,
        "version": whole_number(typed.get("version", "")) or 0,
        "days": _number("days", typed.get("days", "")) if first_days else 0.0,
        "window": int(_number("window", typed.get("window", ""))),
        "alpha": _number("alpha", typed.get("alpha", "")) / 100,
        "threshold": _number("threshold", typed.get("threshold", "")),
    }


def _number(field: str, text: str) -> float:
    try:
        found = float(text)
        int(found)  # neither infinite nor NaN
    except (ValueError, OverflowError):
        raise Invalid.at(field, f"'{text.strip()[:40]}' is not a number") from None
    return found


@post("models/<str:name>/data-drift/<int:pk>/check", Right.OPERATE)
def drift_check_now(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    found = select.monitor_get(model_get(name), pk)
    return call_service(request, monitor_check, "The check has begun.", "model_drift", name, monitor=found)


@post("models/<str:name>/data-drift/<int:pk>/delete", Right.OPERATE)
def drift_monitor_delete(request: HttpRequest, name: str, pk: int) -> HttpResponse:
    found = select.monitor_get(model_get(name), pk)
    return call_service(request, monitor_delete, "The monitor is deleted.", "model_drift", name, monitor=found)

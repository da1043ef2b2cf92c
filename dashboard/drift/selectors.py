"""Reads of drift monitors and their windows, and of the models in which drift was found."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from dashboard.access.authorisation import Actor
from dashboard.captures.selectors import may_read
from dashboard.models import Capture, DriftMonitor, DriftWindow, Model
from dashboard.models.drift import ColumnDrift, Distribution
from dashboard.shared.exceptions import NotFound


@dataclass(frozen=True, slots=True)
class DriftFound:
    """A model whose newest window drifted. since: when the first of the drifted windows in a row ended. columns: the names of
    the worst drifted columns. share: of drifted columns, from 0 to 1."""

    model_name: str
    monitor: int
    since: datetime
    window: int
    columns: list[str]
    share: float


def drift_found(model_name: str = "") -> list[DriftFound]:
    """Return the monitors whose newest window drifted, of all models or of one: what an alert is about."""
    rows = DriftMonitor.objects.exclude(drifted_since=None).select_related("model").order_by("model__name", "pk")
    if model_name:
        rows = rows.filter(model__name=model_name)
    found = []
    for monitor in rows:
        window = monitor.compared_windows.first()
        if window is not None and monitor.drifted_since is not None:
            names = [column["name"] for column in window.columns if column["drifted"]]
            found.append(
                DriftFound(monitor.model.name, monitor.pk, monitor.drifted_since, window.number, names, window.share)
            )
    return found


def monitors(model: Model) -> QuerySet[DriftMonitor]:
    """Return the monitors of a model, the newest first."""
    return DriftMonitor.objects.filter(model=model).select_related("model", "reference", "job")


def monitor_get(model: Model, pk: int) -> DriftMonitor:
    """Return a monitor. Raises NotFound if the model has none of that id."""
    found = monitors(model).filter(pk=pk).first()
    if found is None:
        raise NotFound(f"model '{model.name}' has no drift monitor {str(pk)[:20]}")
    return found


def windows(monitor: DriftMonitor) -> QuerySet[DriftWindow]:
    """Return the windows of a monitor, the newest first."""
    return monitor.compared_windows.select_related("picture", "capture")


def window_get(monitor: DriftMonitor, number: int) -> DriftWindow:
    """Return a window. Raises NotFound if the monitor has none of that number."""
    found = windows(monitor).filter(number=number).first()
    if found is None:
        raise NotFound(f"drift monitor {monitor.pk} has no window {str(number)[:20]}")
    return found


def distributions_of(window: DriftWindow, actor: Actor) -> list[Distribution]:
    """Return the distributions of a window's worst columns; [] if the actor may not see what clients send, or a capture of them
    was deleted."""
    picture = getattr(window, "picture", None)
    return picture.distributions if picture is not None and may_see_values(actor, window.monitor.model) else []


def may_see_values(actor: Actor, model: Model) -> bool:
    """Return whether the actor may see values that clients sent to a model: as the readers of its captures may."""
    return may_read(actor, model)


def drawn(window: DriftWindow, actor: Actor) -> list[tuple[ColumnDrift, Distribution | None]]:
    """Return the columns of a window with their distributions, as far as they are kept and the actor may see them."""
    pictures = distributions_of(window, actor)
    return [(column, pictures[place] if place < len(pictures) else None) for place, column in enumerate(window.columns)]


def references(model: Model) -> list[Capture]:
    """Return the captures that may be a reference: those that have ended, and that keep answered requests."""
    rows = Capture.objects.filter(model=model).order_by("-created_at")
    return [capture for capture in rows if _representative(capture) and not capture.running]


def captures_compared(monitor: DriftMonitor) -> list[Capture]:
    """Return the captures whose requests a monitor compares, the oldest first."""
    rows = Capture.objects.filter(model=monitor.model_id).order_by("created_at")
    return [capture for capture in rows if _representative(capture)]


def _representative(capture: Capture) -> bool:
    return not capture.wanted["errors_only"]

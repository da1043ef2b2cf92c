"""The job `drift`: compares the windows of a monitor that are complete with its reference, one after the other.

A window is consecutive requests of one capture. Its row is stored in one transaction with the position of the monitor,
so the job can be run again after its worker died.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone

from dashboard.drift.comparison import Comparison, compare, ensure_scipy, level_of
from dashboard.drift.features import Table, add, kinds_of
from dashboard.drift.reading import Reference, comparable, fits, is_batched, reference_of, requests_of
from dashboard.drift.selectors import captures_compared
from dashboard.jobs.context import JobContext, undone_by
from dashboard.models import Capture, DriftMonitor, DriftPicture, DriftWindow, Job
from dashboard.shared.exceptions import Conflict, DashboardError
from dashboard.shared.repository_errors import repository_errors

MOST_WINDOWS = 1000  # that are kept of one monitor
MOST_COLUMNS = 100  # that are kept of one window
MOST_PICTURES = 40  # columns of a window whose distributions are kept
_UNEXPECTED = "The check failed unexpectedly; the worker's log has the details."


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive requests of a capture. last: the number of the last one."""

    capture: Capture
    table: Table
    first_at: float
    last_at: float
    last: int


def drift_run(context: JobContext) -> dict[str, object]:
    """Run the job `drift`, whose params are {"monitor": id}."""
    monitor = DriftMonitor.objects.select_related("model", "reference").filter(pk=context.params["monitor"]).first()
    if monitor is None:
        raise Conflict("the monitor was deleted meanwhile")
    with undone_by(
        lambda error: _checked(monitor, error.message if isinstance(error, DashboardError) else _UNEXPECTED)
    ):
        done = _check(context, monitor)
    _checked(monitor, "")
    return {"windows": done}


def drift_abandoned(job: Job) -> None:
    """Note at the monitor that its check ended while no worker ran it."""
    for monitor in DriftMonitor.objects.filter(pk=job.params["monitor"]):
        _checked(monitor, job.error)


@repository_errors()
def _check(context: JobContext, monitor: DriftMonitor) -> int:
    """Compare the windows that are complete, and return their number."""
    ensure_scipy()
    capture = monitor.reference
    if capture is None:
        raise Conflict("the capture of the reference was deleted: make a new monitor")
    context.begin_step(0, "Reading the reference")
    reference = reference_of(monitor, capture, context.check_cancelled)
    kinds = kinds_of(reference.table, reference.datatypes)
    done = 0
    for window in _windows(context, monitor, reference):
        context.begin_step(50, f"Comparing window {monitor.windows + 1}")
        alike = comparable(capture, window.capture)
        compared = {
            column: kind for column, kind in kinds.items() if alike(column.tensor) and column in window.table.values
        }
        level = level_of(monitor.windows + 1, monitor.alpha)
        found = compare(reference.table, window.table, compared, level, monitor.threshold)
        _keep(context, monitor, reference, window, found)
        done += 1
    context.refuse_superseded()
    monitor.save(update_fields=["position"])
    return done


def _windows(context: JobContext, monitor: DriftMonitor, reference: Reference) -> Iterator[Window]:
    """Yield the complete windows of requests after the reference, in the order of their captures."""
    batched = is_batched(monitor.model)
    for capture in captures_compared(monitor):
        table, first_at = Table(), 0.0
        seen: set[str] = set()
        after = monitor.position.get(str(capture.pk), 0)
        for request in requests_of(capture.folder, batched=batched, after=after):
            if request.at <= reference.last_at or not fits(monitor, request):
                if not table.rows:
                    monitor.position[str(capture.pk)] = request.number  # not to be read again
                continue
            first_at = first_at or request.at
            seen |= request.tensors.keys()
            add(table, reference.columns, request.tensors)
            if table.rows >= monitor.window:
                there = Table(
                    {column: values for column, values in table.values.items() if column.tensor in seen}, table.rows
                )
                yield Window(capture, there, first_at, request.at, request.number)
                table, first_at = Table(), 0.0
                seen.clear()
            elif table.rows % 500 == 0:
                context.check_cancelled()


def _keep(context: JobContext, monitor: DriftMonitor, reference: Reference, window: Window, found: Comparison) -> None:
    """Store a window, and move the monitor's position behind it. A superseded worker stores nothing."""
    first_at, last_at = (datetime.fromtimestamp(at, UTC) for at in (window.first_at, window.last_at))
    with transaction.atomic():
        context.refuse_superseded()
        row = DriftMonitor.objects.select_for_update().filter(pk=monitor.pk).first()
        if row is None or row.reference_id is None or not Capture.objects.filter(pk=window.capture.pk).exists():
            raise Conflict("the monitor, or a capture that it compares, was deleted meanwhile")
        monitor.windows = row.windows + 1
        monitor.position[str(window.capture.pk)] = window.last
        monitor.drifted_since = (row.drifted_since or last_at) if found.drifted else None
        monitor.save(update_fields=["windows", "position", "drifted_since"])
        kept = DriftWindow.objects.create(
            monitor=monitor,
            number=monitor.windows,
            capture=window.capture,
            first_at=first_at,
            last_at=last_at,
            requests=window.table.rows,
            reference_requests=reference.table.rows,
            level=level_of(monitor.windows, monitor.alpha),
            compared=len(found.columns),
            drifted=len(found.drifted),
            columns=found.columns[:MOST_COLUMNS],
        )
        DriftPicture.objects.create(
            window=kept,
            capture=window.capture,
            reference_id=row.reference_id,
            distributions=found.distributions[:MOST_PICTURES],
        )
        monitor.compared_windows.filter(number__lte=monitor.windows - MOST_WINDOWS).delete()
    words = f"{len(found.drifted)} of {len(found.columns)} columns drifted" if found.drifted else "nothing drifted"
    context.log(f"Window {monitor.windows}: {words}")


def _checked(monitor: DriftMonitor, note: str) -> None:
    DriftMonitor.objects.filter(pk=monitor.pk).update(note=note, checked_at=timezone.now())

"""Makes and deletes drift monitors, and queues their checks."""

from datetime import timedelta
from pathlib import Path

from django.db import transaction
from django.utils import timezone

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import SYSTEM, Actor, Right, require
from dashboard.drift.comparison import ALPHA, LEAST_ROWS, THRESHOLD, ensure_scipy
from dashboard.drift.reading import files_after
from dashboard.drift.selectors import captures_compared, references
from dashboard.jobs.services import job_create
from dashboard.models import Capture, DriftMonitor, Model
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.repository_errors import repository_errors
from repository.core.capture_files import read_rows
from repository.core.errors import CaptureUnusable

WINDOW = 1000  # requests
MOST_WINDOW = 100_000
MOST_DAYS = 30.0
MOST_MONITORS = 10  # of one model
_AGAIN = timedelta(minutes=1)
_AFTER_TROUBLE = timedelta(hours=1)


@repository_errors()
def monitor_create(
    *,
    model: Model,
    actor: Actor,
    capture: str = "",
    version: int = 0,
    days: float = 0.0,
    window: int = WINDOW,
    alpha: float = ALPHA,
    threshold: float = THRESHOLD,
) -> DriftMonitor:
    """Make a monitor, and begin its first check.

    capture: the reference; with "" the oldest capture with requests of the version, whose first `days` are the reference.
    version: only requests that it answered; 0 for any. Raises Invalid if a number is out of range, or scipy is missing. Raises
    Conflict if there is no such capture, it has not ended, or the model has too many monitors.
    """
    require(actor, Right.OPERATE)
    ensure_scipy()
    _between("window", window, LEAST_ROWS, MOST_WINDOW)
    _between("alpha", alpha, 1e-6, 0.2)
    _between("threshold", threshold, 0.0, 10.0)
    _between("days", days, 0.0, MOST_DAYS)
    if not capture and (not days or not version):
        raise Invalid.at("capture", "name a capture as the reference, or a version and its first days")
    reference = _capture_named(model, capture) if capture else _first_of(model, version, days)
    with transaction.atomic():
        model = Model.locked(model.pk)
        if DriftMonitor.objects.filter(model=model).count() >= MOST_MONITORS:
            raise Conflict(f"model '{model.name}' has {MOST_MONITORS} drift monitors: delete one first")
        monitor = DriftMonitor.objects.create(
            model=model,
            reference=reference,
            days=days,
            version=version,
            window=window,
            alpha=alpha,
            threshold=threshold,
            created_by=actor.user,
            created_by_name=actor.name,
        )
        audit_record(
            actor=actor,
            action="drift.monitor",
            model=model,
            summary=f"Began to compare requests of {model.name} with a reference, in windows of {window}",
            after={"monitor": monitor.pk, "reference": str(reference.pk), "version": version, "days": days},
        )
        _queue(monitor, actor)
    return monitor


def monitor_check(*, monitor: DriftMonitor, actor: Actor) -> DriftMonitor:
    """Queue a check of a monitor, unless one is queued or running."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        monitor = _locked(monitor)
        if monitor.reference_id is None:
            raise Conflict("the capture of the reference was deleted: make a new monitor")
        if not monitor.under_way:
            _queue(monitor, actor)
    return monitor


def monitor_delete(*, monitor: DriftMonitor, actor: Actor) -> None:
    """Delete a monitor with its windows; a check that is under way stores nothing more."""
    require(actor, Right.OPERATE)
    with transaction.atomic():
        monitor = _locked(monitor)
        audit_record(
            actor=actor,
            action="drift.delete",
            model=monitor.model,
            summary=f"Deleted drift monitor {monitor.pk} of {monitor.model.name}",
            before={"monitor": monitor.pk, "windows": monitor.windows},
        )
        monitor.delete()


def monitors_check() -> int:
    """Queue a check of each monitor for which captures may have a further window, and return their number."""
    now = timezone.now()
    done = 0
    for monitor in DriftMonitor.objects.exclude(reference=None).select_related("job", "model"):
        pause = _AFTER_TROUBLE if monitor.note else _AGAIN
        waits = monitor.checked_at is not None and monitor.checked_at > now - pause
        if not waits and not monitor.under_way and _has_more(monitor):
            monitor_check(monitor=monitor, actor=SYSTEM)
            done += 1
    return done


def _has_more(monitor: DriftMonitor) -> bool:
    """Return whether a capture may have a window's requests behind those that were compared, some of them new."""
    looked = 0.0 if monitor.checked_at is None else monitor.checked_at.timestamp()
    for capture in captures_compared(monitor):
        try:
            files = files_after(capture.folder, monitor.position.get(str(capture.pk), 0))
        except CaptureUnusable:  # the others are compared
            continue
        if sum(file.rows for file in files) >= monitor.window and _written_at(files[-1].path) >= looked:
            return True
    return False


def _written_at(path: Path) -> float:
    """Return when a file was written, in unix seconds; 0 if it was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _queue(monitor: DriftMonitor, actor: Actor) -> None:
    monitor.job = job_create(
        kind="drift",
        params={"monitor": monitor.pk},
        actor=actor,
        title=f"Look for data drift in {monitor.model.name}",
        model=monitor.model,
    )
    monitor.save(update_fields=["job"])


def _locked(monitor: DriftMonitor) -> DriftMonitor:
    Model.locked(monitor.model_id)
    found = DriftMonitor.objects.select_related("model", "job").filter(pk=monitor.pk).first()
    if found is None:
        raise Conflict("the monitor was deleted meanwhile")
    return found


def _capture_named(model: Model, pk: str) -> Capture:
    found = next((capture for capture in references(model) if str(capture.pk) == pk), None)
    if found is None:
        raise Conflict("there is no such capture of the model that has ended: choose another one, or end it first")
    return found


def _first_of(model: Model, version: int, days: float) -> Capture:
    """Return the capture with the first request that the version answered, if those days are over."""
    for capture in Capture.objects.filter(model=model).order_by("created_at"):
        if capture.wanted["errors_only"]:
            continue
        for file in files_after(capture.folder, 0):
            rows = read_rows(file.path)
            found = rows.at[rows.versions == version]
            if not len(found):
                continue
            end = float(found[0]) + timedelta(days=days).total_seconds()
            if end > timezone.now().timestamp():
                raise Conflict(f"the first {days:g} days of version {version} are not over yet: choose fewer, or wait")
            return capture
    raise Conflict(f"no capture has requests that version {version} answered: capture some first")


def _between(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise Invalid.at(field, f"expected '{field}' from {low:g} to {high:g}, but got {value:g}")

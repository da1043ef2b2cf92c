"""Drift monitors of a model. The capture that is the reference is no text."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dashboard.access.authorisation import Actor
from dashboard.drift.services import monitor_create, monitor_delete
from dashboard.models import Capture, DriftMonitor
from dashboard.shared.exceptions import NotFound
from dashboard.text.kinds import Change, Kind, Secrets
from dashboard.text.shapes import Record

_FIELDS = {"version": int, "days": float, "window": int, "alpha": float, "threshold": float}
_DEFAULTS = {"version": 0, "days": 0.0}


def _monitors() -> Mapping[str, Any]:
    """Return the monitors; one whose reference was deleted rests for ever, and is left out."""
    found: dict[str, list[object]] = defaultdict(list)
    for row in DriftMonitor.objects.exclude(reference=None).select_related("model"):
        found[row.model.name].append(_entry(row))
    return dict(found)


def _entry(row: DriftMonitor) -> dict[str, object]:
    return {"capture": str(row.reference_id), **{name: getattr(row, name) for name in _FIELDS}}


def _write(change: Change, actor: Actor, kept: Secrets) -> None:
    if change.after is not None:
        monitor_create(model=change.model, actor=actor, **change.after)
        return
    wanted = {**_DEFAULTS, **change.before}
    row = next((row for row in change.model.drift_monitors.exclude(reference=None) if _entry(row) == wanted), None)
    if row is None:
        raise NotFound("the drift monitor was deleted meanwhile")
    monitor_delete(monitor=row, actor=actor)


def _refused(change: Change, actor: Actor) -> str:
    wanted = (change.after or change.before)["capture"]
    there = map(str, Capture.objects.filter(model__name=change.scope).values_list("pk", flat=True))
    if change.after is None or wanted in there:
        return ""
    return f"the model has no capture '{wanted[:40]}', and captures are no text"


MONITORS = Kind(
    name="drift monitors",
    one="drift monitor",
    file="drift.yaml",
    shape=[Record({"capture": str, **_FIELDS}, _DEFAULTS)],
    read=_monitors,
    write=_write,
    of_model=True,
    entries=True,
    listed=True,
    sparse=True,
    refused=_refused,
)

"""Policies of a model: objective, budget, retention, replay gate, metric of labels, readers of captures, alerts off."""

from collections.abc import Callable, Mapping
from typing import Any

from dashboard.access.authorisation import Actor, Right
from dashboard.alerts.switches import kind_switch
from dashboard.captures.services import capture_readers_set
from dashboard.measurements.services import budget_set
from dashboard.models import AlertOff, Capture, Model, Objective, TruthMetric
from dashboard.models.model import Budget
from dashboard.objectives.services import objective_set
from dashboard.replays.services import replay_gate_set
from dashboard.shared.choices import TruthKind
from dashboard.text.alerts import default_alert
from dashboard.text.kinds import Change, Kind, Secrets
from dashboard.text.shapes import NAMES, Record
from dashboard.truth.services import metric_set
from dashboard.versions.retention import retention_set

_LABELS = {"expression": "", "higher_is_better": True, "limit": None, "bound": None}
_TOLERANCE = ("most_percent", "most_p99_times", "absolute", "relative")
_FIELDS = {
    "objective": Record({"percent": float, "latency_ms": float}, {"latency_ms": None}),
    "budget": Record({"p99_ms": float, "per_second": float}),
    "retention": Record({"count": int, "days": int}, {"count": None, "days": None}),
    "replay_gate": Record({"capture": str, **dict.fromkeys(_TOLERANCE, float)}, {"most_p99_times": None}),
    "labels": Record(
        {"kind": str, "output": str, "expression": str, "higher_is_better": bool, "limit": float, "bound": float},
        _LABELS,
    ),
    "capture_readers": NAMES,
    "alerts_off": NAMES,
}
_NONE: dict[str, Any] = {**dict.fromkeys(_FIELDS), "retention": {}, "capture_readers": [], "alerts_off": []}


def _policies() -> Mapping[str, Any]:
    found: dict[str, dict[str, Any]] = {}
    for name, budget, retention, gate in Model.objects.values_list("name", "budget", "retention", "replay_gate"):
        found[name] = {"budget": budget or None, "retention": retention, "replay_gate": gate or None}
    for name, percent, latency in Objective.objects.values_list("model__name", "percent", "latency_ms"):
        found[name]["objective"] = {"percent": percent, "latency_ms": latency}
    for row in TruthMetric.objects.select_related("model"):
        labels = {field: getattr(row, field) for field in ("kind", "output", *_LABELS)}
        if row.kind != TruthKind.OWN:
            del labels["higher_is_better"]
        found[row.model.name]["labels"] = {**labels, "kind": str(row.kind)}
    for name, person in Model.objects.exclude(capture_readers=None).values_list("name", "capture_readers__username"):
        found[name].setdefault("capture_readers", []).append(person)
    for name, kind in AlertOff.objects.exclude(model=None).values_list("model__name", "kind"):
        found[name].setdefault("alerts_off", []).append(kind)
    return found


def _write(change: Change, actor: Actor, kept: Secrets) -> None:
    model, wanted = change.model, {**_NONE, **change.after}
    for field, setter in _SETTERS.items():
        if change.changed(field, _NONE[field]):
            setter(model, actor, wanted[field], (change.before or {}).get(field, _NONE[field]))


def _objective(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    objective_set(model=model, actor=actor, **(wanted or {"percent": None}))


def _budget(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    budget_set(
        model=model,
        actor=actor,
        budget=Budget(p99_ms=wanted["p99_ms"], per_second=wanted["per_second"]) if wanted else Budget(),
    )


def _retention(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    retention_set(model=model, actor=actor, **wanted)


def _replay_gate(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    replay_gate_set(model=model, actor=actor, **(wanted or {}))


def _labels(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    metric_set(model=model, actor=actor, **wanted)


def _readers(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    capture_readers_set(model=model, actor=actor, readers=wanted)


def _alerts_off(model: Model, actor: Actor, wanted: Any, before: Any) -> None:
    for name in sorted({*wanted, *before}):
        kind = default_alert(name)
        if kind is not None and (name in wanted) != (name in before):
            kind_switch(kind=kind, actor=actor, on=name in before, model=model)


_SETTERS: Mapping[str, Callable[[Model, Actor, Any, Any], None]] = {
    "objective": _objective,
    "budget": _budget,
    "retention": _retention,
    "replay_gate": _replay_gate,
    "labels": _labels,
    "capture_readers": _readers,
    "alerts_off": _alerts_off,
}


def _refused(change: Change, actor: Actor) -> str:
    after, before = change.after, change.before or {}
    labels, gate = after.get("labels"), after.get("replay_gate")
    if labels is None and before.get("labels"):
        return "the metric of labels cannot be removed, only changed"
    if labels and labels["kind"] != TruthKind.OWN and "higher_is_better" in labels:
        return "labels: only an own metric has higher_is_better"
    if gate and gate != before.get("replay_gate") and not _has_capture(change.scope, gate["capture"]):
        return f"replay_gate: the model has no capture '{gate['capture'][:40]}', and captures are no text"
    unknown = next((name for name in after.get("alerts_off", []) if default_alert(name) is None), "")
    return f"alerts_off: there is no default alert '{unknown[:40]}'" if unknown else ""


def _has_capture(model_name: str, pk: str) -> bool:
    return pk in map(str, Capture.objects.filter(model__name=model_name).values_list("pk", flat=True))


def _rights(change: Change) -> tuple[Right, ...]:
    readers = change.changed("capture_readers", [])
    return (Right.OPERATE, Right.ADMINISTER) if readers else (Right.OPERATE,)


POLICIES = Kind(
    name="policies",
    one="policy",
    file="policies.yaml",
    shape=Record(_FIELDS, _NONE),
    read=_policies,
    write=_write,
    of_model=True,
    refused=_refused,
    rights=_rights,
)

"""The replay that a model's gate demands, and whether the newest one of a version passes. Without one it may not go live.

Only a replay of the gate's capture counts, of the configuration that would serve, with a tolerance that is not wider.
"""

from dataclasses import dataclass

from django.db.models import QuerySet

from dashboard.access.audit import audit_record
from dashboard.access.authorisation import Actor
from dashboard.models import Capture, Model, Replay, Version
from dashboard.models.model import ReplayGate
from dashboard.releases.budgets import REASON_CHARACTERS, newest_alike
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Conflict
from repository.config.document import Document
from repository.core.histogram import quantiles_ms
from repository.core.quantities import latency, three_digits


@dataclass(frozen=True, slots=True)
class ReplayVerdict:
    """Whether a version passes the gate. replay: the one that decided, None for none. why: a clause; "" if it passes."""

    replay: Replay | None
    why: str


def gate_in_words(gate: ReplayGate) -> str:
    """Return a gate in words: "at most 1 % of the requests differ, none fails, and the p99 is at most 2 times the captured"."""
    times = gate["most_p99_times"]
    p99 = "" if times is None else f", and the p99 is at most {times:g} times the captured one"
    return (
        f"at most {gate['most_percent']:g} % of the requests differ{' and' if times is None else ','} none fails{p99}"
    )


def gate_capture(model: Model) -> Capture | None:
    """Return the capture that the gate of a model demands to replay; None without a gate, or after the capture was deleted."""
    return Capture.objects.filter(pk=model.replay_gate["capture"]).first() if model.replay_gate else None


def p99_ms(histogram: dict[str, int]) -> float | None:
    return quantiles_ms({int(bucket): count for bucket, count in histogram.items()}, (0.99,))[0]


def replay_verdict(version: Version, document: Document) -> ReplayVerdict | None:
    """Return whether a version with this configuration passes the gate of its model, or None if the model has no gate."""
    gate = version.model.replay_gate
    if not gate:
        return None
    if gate_capture(version.model) is None:
        return ReplayVerdict(None, "the capture of the gate was deleted, so it cannot be replayed")
    rows = _fitting(version, gate)
    newest = newest_alike(rows, version, document)
    if newest is not None:
        return ReplayVerdict(newest, _failed(gate, newest))
    if not rows.exists():
        return ReplayVerdict(
            None, f"the capture was not replayed against version {version.number} with the tolerance of the gate"
        )
    return ReplayVerdict(
        None, f"the capture was replayed against version {version.number} with another configuration, not with this one"
    )


def refuse_at_replay_gate(*, version: Version, document: Document, actor: Actor, override: str = "") -> None:
    """Raise Conflict if the version does not pass the replay gate of its model, unless the actor gives a reason to go on.

    document: the configuration that would serve. The reason is recorded in the audit trail, in the caller's transaction.
    """
    found, override = replay_verdict(version, document), override.strip()[:REASON_CHARACTERS]
    if found is None or not found.why:
        return
    name, gate = version.model.name, gate_in_words(version.model.replay_gate)
    if not override:
        raise Conflict(
            f"version {version.number} of '{name}' may not go live: {found.why}, and the replay gate is that {gate}. Replay "
            "the capture, or give a reason to override the gate"
        )
    audit_record(
        actor=actor,
        action="replay_gate.override",
        model=version.model,
        summary=f"Overrode the replay gate of {name} for version {version.number}: {override}",
        after={"version": version.number, "why": found.why, "reason": override},
    )


def refuse_unreplayed(*, model: Model, number: int) -> None:
    """Raise Conflict, because a version that is not yet published would go live although the model has a replay gate."""
    raise Conflict(
        f"version {number} of '{model.name}' may not go live before the capture of the replay gate was replayed against it: "
        "publish it without making it live, and replay the capture"
    )


def _fitting(version: Version, gate: ReplayGate) -> QuerySet[Replay]:
    rows = Replay.objects.filter(
        version=version,
        capture_id=gate["capture"],
        state=MeasurementState.DONE,
        absolute__lte=gate["absolute"],
        relative__lte=gate["relative"],
    )
    return rows.order_by("-finished_at", "-pk")


def _failed(gate: ReplayGate, replay: Replay) -> str:
    """Return the reason why a replay does not pass; "" if it does."""
    figures = replay.figures
    if figures["failed"]:
        failed = f"{figures['failed']:,} of {replay.done:,} requests"
        return f"{failed} failed in its newest replay, which were answered when captured"
    if replay.differ_share is None:
        return "no answer could be compared in its newest replay"
    if 100 * replay.differ_share > gate["most_percent"]:
        percent = three_digits(100 * replay.differ_share)
        return f"{percent} % of the requests ({figures['differ']:,} of {figures['compared']:,}) differ in its newest replay"
    before, now, times = p99_ms(figures["captured"]), p99_ms(figures["replayed"]), gate["most_p99_times"]
    if times is not None and before and now and now > times * before:
        factor = three_digits(now / before)
        return f"its newest replay has a p99 of {latency(now)}, {factor} times the captured {latency(before)}"
    return ""

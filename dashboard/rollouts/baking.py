"""How long the present step of a rollout has served, and when the next one comes by itself."""

from datetime import datetime, timedelta

from django.utils import timezone

from dashboard.models import ReleaseSpan, Rollout, RolloutFigures, Server
from dashboard.releases import life
from dashboard.releases.rollout_states import UNDER_WAY
from dashboard.servers.server_state import last_seen
from dashboard.shared.choices import RolloutKind, RolloutState


def bake_left(rollout: Rollout, server: Server) -> float | None:
    """Return the seconds until the next step comes by itself, 0 where it is due; None where none will, or it is not known when.

    A step's time counts while the server serves it, and ends when no guardrail waits for samples any more. Of a paused rollout
    it is what will be left when it is resumed.
    """
    if rollout.state not in UNDER_WAY or not _comes_by_itself(rollout):
        return None
    paused, spans = rollout.state == RolloutState.PAUSED, _spans(rollout, server)
    if not paused and all(ended is not None for _, ended in spans):
        return None
    left = max(0.0, rollout.bake_s - _served(rollout, server, spans))
    return left if left or paused or not _waits(rollout, server) else None


def served_seconds(rollout: Rollout, server: Server) -> float:
    """Return for how many seconds a server has been seen to serve the present step, pauses left out."""
    return _served(rollout, server, _spans(rollout, server))


def _spans(rollout: Rollout, server: Server) -> list[tuple[datetime, datetime | None]]:
    """Return from when to when a server has served the present step."""
    if rollout.step_release is None:
        return []
    spans = ReleaseSpan.objects.filter(
        model=rollout.model_id,
        server=server,
        release__rollout=rollout,
        release__number__gte=rollout.step_release.number,
    )
    return list(spans.values_list("started_at", "ended_at"))


def _served(rollout: Rollout, server: Server, spans: list[tuple[datetime, datetime | None]]) -> float:
    if rollout.state == RolloutState.PAUSED:
        return rollout.baked_s
    now, since = timezone.now(), rollout.resumed_at
    if (seen := last_seen(server=server)) is not None:
        now = min(now, seen + life.UNSEEN)
    lengths = ((ended or now) - (max(started, since) if since else started) for started, ended in spans)
    return rollout.baked_s + sum((max(one, timedelta()) for one in lengths), timedelta()).total_seconds()


def _comes_by_itself(rollout: Rollout) -> bool:
    """Whether something follows the present step without a person."""
    if rollout.kind == RolloutKind.AB:
        return False
    if rollout.kind == RolloutKind.SHADOW:
        return rollout.bake_s > 0
    last = rollout.next_weight is None
    return not last or (rollout.plan["promote"] == "auto" and isinstance(rollout.candidate, int))


def _waits(rollout: Rollout, server: Server) -> bool:
    """Whether a guardrail has too few samples, or nothing is told of this step yet."""
    if not rollout.plan["guardrails"]:
        return False
    row = RolloutFigures.objects.filter(rollout=rollout, server=server).first()
    if row is None or row.told["asked_weight"] != rollout.weight:
        return True
    judged = row.told["guardrails"]
    return len(judged) < len(rollout.plan["guardrails"]) or any(one["state"] != "holds" for one in judged)

"""How long the present step of a rollout has served, and when the next one comes by itself."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils import timezone

from dashboard.models import ReleaseSpan, Rollout, RolloutFigures, Server
from dashboard.models.rollout import TrafficReport
from dashboard.releases import life
from dashboard.releases.rollout_states import UNDER_WAY
from dashboard.servers.selectors import answers, servers
from dashboard.shared.choices import RolloutKind, RolloutState

Span = tuple[datetime, datetime | None]  # from when to when, None while it goes on


class Served(NamedTuple):
    """For how many seconds a server has been seen to serve the present step, pauses left out; whether it serves it now."""

    seconds: float
    serves: bool


def bake_left(rollout: Rollout, served: Mapping[Server, Served]) -> float | None:
    """Return the seconds until the next step comes by itself, 0 where it is due; None where none will, or it is not known when.

    served: of `served_by`. A step's time counts while every server serves it, and ends when no guardrail waits for samples any
    more. Of a paused rollout it is what will be left when it is resumed.
    """
    if rollout.state not in UNDER_WAY or not comes_by_itself(rollout):
        return None
    paused = rollout.state == RolloutState.PAUSED
    if not paused and not all(one.serves for one in served.values()):
        return None
    left = max(0.0, rollout.bake_s - least(served))
    return left if left or paused or not _waits(rollout) else None


def least(served: Mapping[Server, Served]) -> float:
    """Return for how many seconds all servers have served the present step."""
    return min((one.seconds for one in served.values()), default=0.0)


def served_by(rollout: Rollout) -> dict[Server, Served]:
    """Return how the present step serves, by server: on the bundled one, which is the first, and on others that answer.

    A server that is cut off is left out, because it would hold up the rollout.
    """
    spans = ReleaseSpan.objects.none()
    if rollout.step_release is not None:
        since = rollout.step_release.number
        spans = ReleaseSpan.objects.filter(model=rollout.model_id, release__rollout=rollout, release__number__gte=since)
    found = defaultdict[int, list[Span]](list)
    for server_id, started, ended in spans.values_list("server", "started_at", "ended_at"):
        found[server_id].append((started, ended))
    return {
        server: Served(_seconds(rollout, server, found[server.pk]), any(ended is None for _, ended in found[server.pk]))
        for server in servers()
        if server.bundled or answers(server)
    }


def _seconds(rollout: Rollout, server: Server, spans: list[Span]) -> float:
    if rollout.state == RolloutState.PAUSED:
        return rollout.baked_s
    now, since, state = timezone.now(), rollout.resumed_at, getattr(server, "state", None)
    if state is not None and state.checked_at is not None:
        now = min(now, state.checked_at + life.UNSEEN)
    lengths = ((ended or now) - (max(started, since) if since else started) for started, ended in spans)
    return rollout.baked_s + sum((max(one, timedelta()) for one in lengths), timedelta()).total_seconds()


def comes_by_itself(rollout: Rollout) -> bool:
    """Whether something follows the present step without a person."""
    if rollout.kind == RolloutKind.AB:
        return False
    if rollout.kind == RolloutKind.SHADOW:
        return rollout.bake_s > 0
    last = rollout.next_weight is None
    return not last or (rollout.plan["promote"] == "auto" and isinstance(rollout.candidate, int))


def _waits(rollout: Rollout) -> bool:
    """Whether no server reports yet that every guardrail holds at this step. One is enough: it may get all requests."""
    if not rollout.plan["guardrails"]:
        return False
    rows = RolloutFigures.objects.filter(rollout=rollout)
    return not any(_holds(rollout, row.report) for row in rows)


def _holds(rollout: Rollout, report: TrafficReport) -> bool:
    """Whether every guardrail holds by a server's report of the present step."""
    judged = report["guardrails"]
    all_reported = report["asked_weight"] == rollout.weight and len(judged) >= len(rollout.plan["guardrails"])
    return all_reported and all(one["state"] == "holds" for one in judged)

"""Computes how long the present step of a rollout has served, and when the next step begins automatically."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from django.utils import timezone

from dashboard.models import ReleaseSpan, Rollout, RolloutFigures, Server
from dashboard.models.rollout import TrafficReport
from dashboard.releases import life
from dashboard.releases.rollout_states import UNDER_WAY
from dashboard.servers.selectors import answers, of_production, production_servers
from dashboard.shared.choices import RolloutKind, RolloutState

Span = tuple[datetime, datetime | None]  # its begin and end; the end is None while the span continues


class Served(NamedTuple):
    """The seconds that a server has served the present step, without pauses, and whether it serves the step now."""

    seconds: float
    serves: bool


def bake_left(rollout: Rollout, served: Mapping[Server, Served]) -> float | None:
    """Return the seconds until the next step begins automatically, 0 if it is due, or None if none will or the time is unknown.

    served: the result of `served_by`. The time of a step counts while every server serves the step. The step ends when its time
    is over and no guardrail waits for samples. For a paused rollout, the result is the time left after it is resumed.
    """
    if rollout.state not in UNDER_WAY or not comes_by_itself(rollout):
        return None
    paused = rollout.state == RolloutState.PAUSED
    if not paused and not all(one.serves for one in served.values()):
        return None
    left = max(0.0, rollout.bake_s - least(served))
    return left if left or paused or not _waits(rollout) else None


def least(served: Mapping[Server, Served]) -> float:
    """Return the seconds for which every server has served the present step."""
    return min((one.seconds for one in served.values()), default=0.0)


def served_by(rollout: Rollout) -> dict[Server, Served]:
    """Return how long the bundled server, which is first, and other servers have served the present step.

    An unreachable server is left out, because it would block the rollout.
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
        for server in production_servers()
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
    """Return whether the rollout leaves the present step automatically."""
    if rollout.kind == RolloutKind.AB:
        return False
    if rollout.kind == RolloutKind.SHADOW:
        return rollout.bake_s > 0
    last = rollout.next_weight is None
    return not last or (rollout.plan["promote"] == "auto" and isinstance(rollout.candidate, int))


def _waits(rollout: Rollout) -> bool:
    """Return whether no server reports yet that all guardrails hold at this step.

    One such report is enough, because its server may get all requests.
    """
    if not rollout.plan["guardrails"]:
        return False
    rows = RolloutFigures.objects.filter(of_production("server__"), rollout=rollout)
    return not any(_holds(rollout, row.report) for row in rows)


def _holds(rollout: Rollout, report: TrafficReport) -> bool:
    """Return whether all guardrails hold, by a server's report of the present step."""
    judged = report["guardrails"]
    all_reported = report["asked_weight"] == rollout.weight and len(judged) >= len(rollout.plan["guardrails"])
    return all_reported and all(one["state"] == "holds" for one in judged)

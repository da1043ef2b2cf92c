"""Stores servers' reports about a rollout: the last one of each server, a coarse history of both arms, the worst mismatches.

The counts of a server begin at zero with its process. The counts of earlier processes are added, so that sums only grow. The
history consists of samples of these sums, at first one every few seconds. If there are too many samples, every second one is
removed, and the interval of later ones is doubled.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TypedDict, cast

import orjson
from django.db import transaction
from django.db.models import F, Max
from django.utils import timezone

from dashboard.models import Rollout, RolloutFigures, RolloutMismatch, RolloutSample, Server
from dashboard.models.rollout import Latency, TrafficReport
from dashboard.servers.messages import Mismatch
from dashboard.servers.selectors import of_production
from repository.config.traffic import Keep, policy_of
from repository.core.json_types import JsonObject

FIRST_EVERY_S = 10
MOST_SAMPLES = 600  # the most samples of one rollout on one server
KEPT_DAYS = 30  # the history of a rollout is kept for this many days after its end

ARMS = ("stable", "candidate")
_WORST = 1e300  # the score of an infinite difference
_SHADOW_SUMS = ("compared", "disagreed", "mismatched", "top1_compared", "top1_agreed", "failed")


class ArmSums(TypedDict):
    """Counts of an arm since the rollout began, over all processes of the server."""

    requests: int
    errors: int
    latency: Latency


class ShadowSums(TypedDict):
    """Counts of the shadow since the rollout began, over all processes of the server. sum_absolute: the sum of the means."""

    compared: int
    disagreed: int
    mismatched: int
    top1_compared: int
    top1_agreed: int
    failed: int
    max_absolute: float
    max_relative: float
    sum_absolute: float
    dropped: dict[str, int]
    stable_latency: Latency
    candidate_latency: Latency


class Sums(TypedDict):
    """RolloutSample.data. weight: the weight at that moment, in per cent. arms: the counts by the name of the arm."""

    weight: float
    arms: dict[str, ArmSums]
    shadow: ShadowSums | None


# -- the last report ---------------------------------------------------------------------------------------------------
def figures_store(*, rollout: Rollout, server: Server, report: TrafficReport, instance: str) -> RolloutFigures:
    """Store a server's report of a rollout, and from time to time a sample of the history. instance: the id of its process."""
    now = int(time.time())
    with transaction.atomic():
        row = RolloutFigures.objects.filter(rollout=rollout, server=server).first()
        if row is None:
            row = RolloutFigures(rollout=rollout, server=server, instance=instance, every_s=FIRST_EVERY_S)
        elif row.instance != instance or _began_anew(row.report, report):
            row.earlier, row.instance = cast(JsonObject, sums_of(row)), instance
        row.report, row.at = report, timezone.now()
        row.save()
        _sample(row, now - now % row.every_s)
    return row


def breached(rollout: Rollout) -> tuple[Server, str] | None:
    """Return a server of production that has taken the candidate out, and its reason, or None if no server has."""
    rows = RolloutFigures.objects.filter(of_production("server__"), rollout=rollout).select_related("server")
    return next(
        ((row.server, row.report["breach"]["reason"]) for row in rows if row.report["breach"] is not None), None
    )


def _began_anew(before: TrafficReport, now: TrafficReport) -> bool:
    """Return whether a process restarted its counts: the model was unloaded meanwhile, or an arm became another version."""
    return any(now["arms"][name]["requests"] < before["arms"][name]["requests"] for name in ARMS)


def sums_of(row: RolloutFigures) -> Sums:
    """Return the total counts of a rollout on a server."""
    now = _sums_of_report(row.report)
    return _added(cast(Sums, row.earlier), now) if row.earlier else now


def added(parts: Sequence[Sums]) -> Sums | None:
    """Return the sums of several servers together, or None if there are none. The weight is that of the last one."""
    return reduce(_added, parts) if parts else None


def _sums_of_report(report: TrafficReport) -> Sums:
    arms = {
        name: ArmSums(requests=arm["requests"], errors=arm["errors"], latency=arm["latency"])
        for name, arm in report["arms"].items()
    }
    shadow: ShadowSums | None = None
    if (given := report["shadow"]) is not None:
        rest = {name: value for name, value in given.items() if name not in ("mean_absolute", "trouble")}
        shadow = cast(ShadowSums, {**rest, "sum_absolute": given["mean_absolute"] * given["compared"]})
    return {"weight": report["weight"], "arms": arms, "shadow": shadow}


def _added(one: Sums, other: Sums) -> Sums:
    shadows = [sums for sums in (one["shadow"], other["shadow"]) if sums is not None]
    return {
        "weight": other["weight"],
        "arms": {name: _arms_added(one["arms"][name], other["arms"][name]) for name in ARMS},
        "shadow": _shadows_added(shadows) if shadows else None,
    }


def _arms_added(one: ArmSums, other: ArmSums) -> ArmSums:
    return {
        "requests": one["requests"] + other["requests"],
        "errors": one["errors"] + other["errors"],
        "latency": _latencies_added(one["latency"], other["latency"]),
    }


def _shadows_added(shadows: list[ShadowSums]) -> ShadowSums:
    first, *rest = shadows
    total = first.copy()
    for one in rest:
        for name in _SHADOW_SUMS:
            total[name] += one[name]  # type: ignore[literal-required]
        total["max_absolute"] = max(total["max_absolute"], one["max_absolute"])
        total["max_relative"] = max(total["max_relative"], one["max_relative"])
        total["sum_absolute"] += one["sum_absolute"]
        total["dropped"] = _counts_added(total["dropped"], one["dropped"])
        total["stable_latency"] = _latencies_added(total["stable_latency"], one["stable_latency"])
        total["candidate_latency"] = _latencies_added(total["candidate_latency"], one["candidate_latency"])
    return total


def _latencies_added(one: Latency, other: Latency) -> Latency:
    return {
        "total": one["total"] + other["total"],
        "sum_ns": one["sum_ns"] + other["sum_ns"],
        "counts": _counts_added(one["counts"], other["counts"]),
    }


def _counts_added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


# -- the history -------------------------------------------------------------------------------------------------------
def _sample(row: RolloutFigures, at: int) -> None:
    """Store a sample if the present span has none yet, and thin out the history if it is full."""
    samples = RolloutSample.objects.filter(rollout_id=row.rollout_id, server_id=row.server_id)
    last = samples.aggregate(at=Max("at"))["at"]
    if last is not None and last > at + row.every_s:  # the clock was set back
        samples.filter(at__gte=at).delete()
    elif last is not None and last >= at:
        return
    RolloutSample.objects.create(
        rollout_id=row.rollout_id, server_id=row.server_id, at=at, data=cast(JsonObject, sums_of(row))
    )
    if samples.count() > MOST_SAMPLES:
        row.every_s *= 2
        row.save(update_fields=["every_s"])
        samples.annotate(place=F("at") % row.every_s).exclude(place=0).delete()


# -- mismatches --------------------------------------------------------------------------------------------------------
def keep_of(rollout: Rollout) -> Keep | None:
    """Return the bounds for stored mismatches of a rollout, or None if the rollout stores no mismatches."""
    shadow = rollout.plan.get("shadow")
    if shadow is None:
        return None
    policy = policy_of({"rollout": rollout.name, "candidate": rollout.candidate, "shadow": shadow})
    return policy.shadow.keep if policy.shadow is not None else None


def mismatches_store(*, rollout: Rollout, server: Server, rows: Iterable[Mismatch]) -> None:
    """Store these mismatches. Of all stored mismatches, keep the worst, within the limits of the plan."""
    keep = keep_of(rollout)
    if keep is None:
        return
    with transaction.atomic():
        # The lock waits for a request that deletes the mismatches, because it writes this row first.
        forgotten_at = Rollout.objects.select_for_update().values_list("forgotten_at", flat=True).get(pk=rollout.pk)
        since = max(timezone.now() - timedelta(days=keep.days), forgotten_at or datetime.min.replace(tzinfo=UTC))
        made = [row for row in (_mismatch(rollout, server, row) for row in rows) if row.at > since]
        RolloutMismatch.objects.bulk_create(
            [row for row in made if row.size_bytes <= keep.bytes], ignore_conflicts=True
        )
        _trim(rollout, keep)


def _mismatch(rollout: Rollout, server: Server, row: Mismatch) -> RolloutMismatch:
    data = cast(JsonObject, {"inputs": row["inputs"], "stable": row["stable"], "candidate": row["candidate"]})
    return RolloutMismatch(
        rollout=rollout,
        server=server,
        number=row["id"],
        at=datetime.fromtimestamp(row["at"], UTC),
        score=_WORST if row["score"] is None else row["score"],
        detail=row["detail"],
        size_bytes=len(orjson.dumps(data)),
        data=data,
    )


def _trim(rollout: Rollout, keep: Keep) -> None:
    room, kept = keep.bytes, 0
    spare = []
    for pk, size in RolloutMismatch.objects.filter(rollout=rollout).values_list("pk", "size_bytes"):
        if kept < keep.count and size <= room:
            room, kept = room - size, kept + 1
        else:
            spare.append(pk)
    if spare:
        RolloutMismatch.objects.filter(pk__in=spare).delete()


def rollouts_prune() -> int:
    """Remove mismatches that are older than their plan allows, and the history of rollouts that ended long ago.

    Return the number of rows.
    """
    now, gone = timezone.now(), 0
    for rollout in Rollout.objects.filter(pk__in=RolloutMismatch.objects.values("rollout")):
        keep = keep_of(rollout)
        since = now - timedelta(days=keep.days if keep is not None else 0)
        gone += RolloutMismatch.objects.filter(rollout=rollout, at__lt=since).delete()[0]
    ended = Rollout.objects.filter(ended_at__lt=now - timedelta(days=KEPT_DAYS))
    return gone + RolloutSample.objects.filter(rollout__in=ended).delete()[0]

"""Counts the requests of each objective from the metrics history: by the minute for the last hours, by the hour for 30 days.

Counting is a function of stored rows and replaces its own rows, so a restart, a gap or a second process changes no figure.
The history keeps spans of ten seconds for hours and minutes for days, so the counts are kept in rows of their own.
"""

import time
from collections import defaultdict
from collections.abc import Iterable

from django.db import transaction
from django.db.models import Max, Q

from dashboard.metrics.samples import FINE, FINEST, RESOLUTIONS, decode
from dashboard.metrics.selectors import metrics_rows
from dashboard.metrics.usage import Usage
from dashboard.models import MetricSample, Objective, ObjectiveCount
from dashboard.objectives.burn import HOUR, MINUTE, PERIOD_S
from dashboard.servers.selectors import of_production, production_servers
from repository.core.histogram import BOUNDS_US

_COARSE = max(one for one in RESOLUTIONS if one < HOUR)  # of the days whose minutes are gone
MINUTES_S = 7 * HOUR  # minutes are kept for the longest window that must be exact to the minute, and an hour more
_LATE_S = 20 * MINUTE  # `watch` makes missing spans of the last 15 minutes when it starts
_SOON_S = 2 * MINUTE
_AGAIN_S = 300.0
_MOST_NAMES = 500  # of one statement

Parts = tuple[int, int, int]  # requests, failed, slow


def parts_of(usage: Usage, latency_ms: float | None) -> Parts:
    """Return the requests of a span, those that failed, and those that were too slow. A cancelled request does not count.

    A histogram has a bucket for each 4 to 6 % of latency: answers in the bucket of the limit itself count as quick enough.
    """
    failed = max(0, usage.fail - usage.cancel)
    slow = 0
    if latency_ms is not None:
        limit = latency_ms * 1000
        slow = sum(count for bucket, count in usage.request.items() if bucket and BOUNDS_US[bucket - 1] >= limit)
    return usage.success + failed, failed, min(slow, usage.success)


class ObjectiveCounter:
    """Counts for `watch`: the newest minutes each time, the last 20 minutes at the start and now and then."""

    def __init__(self) -> None:
        self._whole_at = 0.0

    def __call__(self) -> int:
        """Count what is new, and return the number of objectives whose history was counted."""
        now, again = time.time(), time.monotonic()
        fresh = [_count_history(one, now) for one in Objective.objects.filter(counted=False).select_related("model")]
        if again >= self._whole_at:
            self._whole_at = again + _AGAIN_S
            objectives_count(now, _LATE_S)
            counts_prune(now)
        else:
            objectives_count(now, _SOON_S)
        return sum(fresh)


def objectives_count(now: float, seconds: int) -> None:
    """Count the minutes of the last seconds again, and the hours that they belong to."""
    found = list(Objective.objects.filter(counted=True).select_related("model"))
    if not found:
        return
    start = int(now - seconds) // MINUTE * MINUTE
    rows = MetricSample.objects.exclude(model_name="").filter(
        of_production("server__"), _newest_seconds(start) | Q(resolution=FINE, at__gte=start)
    )
    names = {one.model.name for one in found}
    if len(names) <= _MOST_NAMES:
        rows = rows.filter(model_name__in=names)
    usages: dict[str, list[tuple[int, Usage]]] = defaultdict(list)
    for name, at, data in rows.values_list("model_name", "at", "data"):
        if name in names:
            usages[name].append((at, decode(data).usage))
    minutes = {one: _summed(usages[one.model.name], one, MINUTE) for one in found if usages[one.model.name]}
    with transaction.atomic():
        _write(minutes, MINUTE)
        for hour in range(start // HOUR * HOUR, int(now) + 1, HOUR):
            _sum_hour(minutes, hour)


def _newest_seconds(start: int) -> Q:
    """Return the seconds that each server's spans of ten seconds do not have yet: a fault is told sooner by them."""
    whole = MetricSample.objects.filter(model_name="", at__gte=start)
    spans = whole.filter(resolution=FINE).values_list("server").annotate(newest=Max("at"))
    ends = dict.fromkeys(whole.filter(resolution=FINEST).values_list("server", flat=True), start)
    ends |= {server: newest + FINE for server, newest in spans}
    return Q(*(Q(resolution=FINEST, server=server, at__gte=end) for server, end in ends.items()), _connector=Q.OR)


def _count_history(objective: Objective, now: float) -> bool:
    """Count what the history has of an objective's model, back to the model's creation.

    The last minutes may not be in its spans of a minute yet: `objectives_count` counts them next.
    """
    born = int(objective.model.created_at.timestamp())
    fine_from = max(int(now) - RESOLUTIONS[MINUTE] + HOUR, born) // HOUR * HOUR
    coarse = _usages(objective, _COARSE, max(int(now) - PERIOD_S, born), fine_from)
    fine = _usages(objective, MINUTE, max(fine_from, born // MINUTE * MINUTE), int(now) + MINUTE)
    minutes = [one for one in fine if one[0] >= int(now - MINUTES_S) // HOUR * HOUR]
    with transaction.atomic():
        _write({objective: _summed([*coarse, *fine], objective, HOUR)}, HOUR)
        _write({objective: _summed(minutes, objective, MINUTE)}, MINUTE)
        same = Objective.objects.filter(pk=objective.pk, latency_ms=objective.latency_ms)
        return bool(same.update(counted=True))


def _usages(objective: Objective, resolution: int, start: int, end: int) -> list[tuple[int, Usage]]:
    servers = production_servers().values_list("pk", flat=True)
    rows = metrics_rows(list(servers), objective.model.name, resolution, start, end)
    return [(at, decode(data).usage) for at, data in rows.values_list("at", "data")]


def _summed(usages: Iterable[tuple[int, Usage]], objective: Objective, resolution: int) -> dict[int, Parts]:
    found: dict[int, Parts] = {}
    for at, usage in usages:
        requests, failed, slow = parts_of(usage, objective.latency_ms)
        if requests:
            before = found.get(at - at % resolution, (0, 0, 0))
            found[at - at % resolution] = (before[0] + requests, before[1] + failed, before[2] + slow)
    return found


def _sum_hour(minutes: dict[Objective, dict[int, Parts]], hour: int) -> None:
    """Write the hour's row of each of these objectives from its minutes, all of which are still kept."""
    sums: dict[Objective, Parts] = {}
    by_pk = {one.pk: one for one in minutes}
    rows = ObjectiveCount.objects.filter(resolution=MINUTE, at__gte=hour, at__lt=hour + HOUR, objective__in=list(by_pk))
    for pk, requests, failed, slow in rows.values_list("objective_id", "requests", "failed", "slow"):
        before = sums.get(by_pk[pk], (0, 0, 0))
        sums[by_pk[pk]] = (before[0] + requests, before[1] + failed, before[2] + slow)
    _write({one: {hour: parts} for one, parts in sums.items()}, HOUR)


def _write(counted: dict[Objective, dict[int, Parts]], resolution: int) -> None:
    """Write rows of objectives that still exist with the latency that they were counted with."""
    pks = [one.pk for one in counted]
    now = dict(Objective.objects.select_for_update().filter(pk__in=pks).values_list("pk", "latency_ms"))
    rows = [
        ObjectiveCount(objective=one, resolution=resolution, at=at, requests=parts[0], failed=parts[1], slow=parts[2])
        for one, spans in counted.items()
        if one.pk in now and now[one.pk] == one.latency_ms
        for at, parts in spans.items()
    ]
    ObjectiveCount.objects.bulk_create(
        rows,
        batch_size=500,
        update_conflicts=True,
        unique_fields=["objective", "resolution", "at"],
        update_fields=["requests", "failed", "slow"],
    )


def counts_prune(now: float) -> int:
    """Remove counts that no window reaches, and return their number."""
    gone = 0
    for resolution, kept_s in ((MINUTE, MINUTES_S + HOUR), (HOUR, PERIOD_S + HOUR)):
        gone += ObjectiveCount.objects.filter(resolution=resolution, at__lt=int(now) - kept_s).delete()[0]
    return gone

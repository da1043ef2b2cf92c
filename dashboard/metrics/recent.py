"""The figures of models in lists: now, and in the last quarter of an hour, of all servers of production together. They take
two queries."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db.models import Count, QuerySet

from dashboard.metrics.samples import FINE, FINEST, decode
from dashboard.metrics.usage import Usage, combine, combine_side_by_side, figures
from dashboard.models import MetricSample
from dashboard.servers.selectors import of_production

NOW_SECONDS = 15  # the span of "now"
SPARK_SECONDS = 15 * 60
SPARK_STEP = 30


@dataclass(frozen=True, slots=True)
class Numbers:
    """Rates per second, times in ms, shares from 0 to 1, or None if nothing was measured."""

    rps: float | None = None
    p50: float | None = None
    p99: float | None = None
    error_share: float | None = None
    pending: int | None = None
    spark: list[float] = field(default_factory=list)  # requests a second, the oldest first

    @property
    def asked_lately(self) -> bool:
        """True if a request came in the span of the sparkline."""
        return bool(self.rps) or any(self.spark)


NO_NUMBERS = Numbers()


def recent_numbers(names: Iterable[str], now: float | None = None, *, sparks: bool = True) -> dict[str, Numbers]:
    """Return the numbers of each model by its name, and under "" the numbers of all models together.

    The rates of a model without requests are 0 if `watch` stored metrics in that time, else None. now: in Unix seconds.
    sparks: whether to read the sparklines of the models. Without them, only a twentieth of the rows is read.
    """
    now = time.time() if now is None else now
    wanted = set(names) | {""}
    usages = _newest(wanted, now)
    lines = _sparks(wanted if sparks else {""}, now)
    watched = "" in usages or "" in lines
    return {name: _numbers(usages.get(name), lines.get(name), watched) for name in wanted}


def busiest(count: int, now: float | None = None) -> list[tuple[str, Numbers]]:
    """Return at most `count` models with requests in the last quarter of an hour, the busiest now first."""
    now = time.time() if now is None else now
    rows = _samples().filter(resolution__in=(FINEST, FINE), at__gte=int(now) - SPARK_SECONDS)
    active = dict(rows.exclude(model_name="").values_list("model_name").annotate(spans=Count("pk")))
    rates = recent_numbers(active, now, sparks=False)
    first = sorted(active, key=lambda name: (-(rates[name].rps or 0), -active[name], name))[:count]
    numbers = recent_numbers(first, now)
    return [(name, numbers[name]) for name in first]


def _numbers(usage: Usage | None, spark: list[float] | None, watched: bool) -> Numbers:
    if not watched:
        return NO_NUMBERS
    usage = usage or Usage()
    found = figures(usage, NOW_SECONDS)
    requests = usage.success + usage.fail
    errors = max(0, usage.fail - usage.cancel)
    share = errors / requests if requests else None
    return Numbers(found["rps"], found["p50"], found["p99"], share, found["pending"], spark or [])


def _samples() -> QuerySet[MetricSample]:
    return MetricSample.objects.filter(of_production("server__"))


def _newest(names: set[str], now: float) -> dict[str, Usage]:
    found: dict[str, dict[int, list[Usage]]] = defaultdict(lambda: defaultdict(list))
    rows = _samples().filter(resolution=FINEST, at__gt=int(now) - NOW_SECONDS - 1, model_name__in=names)
    for name, at, data in rows.values_list("model_name", "at", "data"):
        found[name][at].append(decode(data).usage)
    return {name: combine(map(combine_side_by_side, seconds.values())) for name, seconds in found.items()}


def _sparks(names: set[str], now: float) -> dict[str, list[float]]:
    """Return each model's requests a second in steps of SPARK_STEP seconds, the oldest first."""
    start = int(now) // FINE * FINE - SPARK_SECONDS
    steps = SPARK_SECONDS // SPARK_STEP
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
    rows = _samples().filter(resolution=FINE, at__gte=start, model_name__in=names)
    for name, at, data in rows.values_list("model_name", "at", "data"):
        step = min((at - start) // SPARK_STEP, steps - 1)
        found[name][step] += decode(data).requests / SPARK_STEP
    return dict(found)

"""What every model is doing now, and did in the last quarter of an hour: the figures of lists, in two queries."""

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from dashboard.models import MetricSample
from dashboard.samples import decode
from dashboard.usage import Usage, combine, figures, unpack

NOW_SECONDS = 15
SPARK_SECONDS = 15 * 60
SPARK_STEP = 30
_ROW_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Numbers:
    """Rates per second, times in ms, shares from 0 to 1; None where nothing was measured."""

    rps: float | None = None
    p50: float | None = None
    p99: float | None = None
    error_share: float | None = None
    pending: int | None = None
    spark: list[float] = field(default_factory=list)


NO_NUMBERS = Numbers()


def recent_numbers(names: Iterable[str], now: float | None = None) -> dict[str, Numbers]:
    """By model; "" stands for all together. A model that did nothing has rates of 0 as long as somebody watched."""
    now = time.time() if now is None else now
    wanted = set(names) | {""}
    usages = _newest(wanted, now)
    sparks = _sparks(wanted, now)
    watched = "" in usages or "" in sparks
    return {name: _numbers(usages.get(name), sparks.get(name), watched) for name in wanted}


def busiest(numbers: dict[str, Numbers], count: int) -> list[tuple[str, Numbers]]:
    """Models with requests in the last quarter of an hour, those with most requests now first."""
    rows = [(name, one) for name, one in numbers.items() if name and (one.rps or any(one.spark))]
    rows.sort(key=lambda row: (-(row[1].rps or 0), -sum(row[1].spark), row[0]))
    return rows[:count]


def _numbers(usage: Usage | None, spark: list[float] | None, watched: bool) -> Numbers:
    if not watched:
        return NO_NUMBERS
    usage = usage or Usage()
    found = figures(usage, NOW_SECONDS)
    requests = usage.success + usage.fail
    errors = max(0, usage.fail - usage.cancel)
    share = errors / requests if requests else None
    return Numbers(found["rps"], found["p50"], found["p99"], share, found["pending"], spark or [])


def _newest(names: set[str], now: float) -> dict[str, Usage]:
    found: dict[str, list[Usage]] = defaultdict(list)
    rows = MetricSample.objects.filter(resolution=1, at__gt=int(now) - NOW_SECONDS - 1, model_name__in=names)
    for name, data in rows.values_list("model_name", "data"):
        packed = decode(data)
        packed.pop("process", None)
        found[name].append(unpack(packed))
    return {name: combine(usages) for name, usages in found.items()}


def _sparks(names: set[str], now: float) -> dict[str, list[float]]:
    """Requests a second in steps of SPARK_STEP, oldest first."""
    start = int(now) // _ROW_SECONDS * _ROW_SECONDS - SPARK_SECONDS
    steps = SPARK_SECONDS // SPARK_STEP
    found: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
    rows = MetricSample.objects.filter(resolution=_ROW_SECONDS, at__gte=start, model_name__in=names)
    for name, at, data in rows.values_list("model_name", "at", "data"):
        packed = decode(data)
        step = min((at - start) // SPARK_STEP, steps - 1)
        found[name][step] += (packed.get("success", 0) + packed.get("fail", 0)) / SPARK_STEP
    return dict(found)

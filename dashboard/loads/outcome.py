"""The result of a load, or of one window of it."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Outcome:
    """The answers in a span of time. requests: the number of successful ones. Latencies are NaN if there are none.

    reasons: the reasons of failures, with their numbers.
    """

    requests: int
    seconds: float
    failures: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    reasons: Mapping[str, int] = field(default_factory=dict)
    mean_ms: float = math.nan

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile of sorted values by the nearest rank; NaN if there are no values."""
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def outcome(latencies_s: Sequence[float], seconds: float, failures: int | Counter[str]) -> Outcome:
    """Summarise latencies. failures: their number, or the number of each reason."""
    ordered = sorted(latencies_s)
    p50, p95, p99 = (percentile(ordered, percent) * 1e3 for percent in PERCENTILES)
    reasons = dict(failures) if isinstance(failures, Counter) else {}
    count = failures if isinstance(failures, int) else failures.total()
    mean_ms = sum(ordered) / len(ordered) * 1e3 if ordered else math.nan
    return Outcome(len(ordered), seconds, count, p50, p95, p99, reasons, mean_ms)

"""The result of a load."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Outcome:
    """requests: the number of successful requests. Latencies are NaN if no request succeeded."""

    requests: int
    seconds: float
    failures: int
    p50_ms: float
    p95_ms: float
    p99_ms: float

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile of sorted values by the nearest rank; NaN if there are no values."""
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def outcome(latencies_s: Sequence[float], seconds: float, failures: int) -> Outcome:
    """Summarise the latencies of a load."""
    ordered = sorted(latencies_s)
    p50, p95, p99 = (percentile(ordered, percent) * 1e3 for percent in PERCENTILES)
    return Outcome(len(ordered), seconds, failures, p50, p95, p99)

"""What a load saw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True)
class Outcome:
    """`requests`: those that were answered with success. Latencies are NaN where there were none."""

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
    """Return the smallest value that is not below `percent` of all (the nearest rank), NaN of nothing."""
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def outcome(latencies_s: Sequence[float], seconds: float, failures: int) -> Outcome:
    """Summarise the latencies of a load."""
    ordered = sorted(latencies_s)
    p50, p95, p99 = (percentile(ordered, percent) * 1e3 for percent in PERCENTILES)
    return Outcome(len(ordered), seconds, failures, p50, p95, p99)

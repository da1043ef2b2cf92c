"""Histograms of durations: sparse counts over fixed log-spaced buckets. They merge by addition; percentiles are never averaged.

A histogram is a dict: bucket -> count. The buckets are the inference server's own (16 to each doubling of microseconds, exact
below 16 us); those of a server that says otherwise are mapped onto them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

_SUB = 16
_DOUBLINGS = 27

Counts = dict[int, int]

# Exclusive upper bound of each bucket in us; bucket i holds [BOUNDS_US[i-1], BOUNDS_US[i]).
BOUNDS_US: list[int] = [*range(1, _SUB + 1)] + [
    (_SUB + step + 1) << shift for shift in range(_DOUBLINGS) for step in range(_SUB)
]


def merge(histograms: Iterable[Mapping[int, int]]) -> Counts:
    total: Counts = {}
    for counts in histograms:
        for bucket, count in counts.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def subtract(later: Mapping[int, int], earlier: Mapping[int, int]) -> Counts:
    """What was added between two cumulative readings."""
    grown = {bucket: count - earlier.get(bucket, 0) for bucket, count in later.items()}
    return {bucket: count for bucket, count in grown.items() if count > 0}


def percentiles_ms(counts: Mapping[int, int], shares: Sequence[float]) -> list[float | None]:
    """The value in ms below which each share (ascending, 0 to 1) lies, linear inside its bucket; None when empty."""
    total = sum(counts.values())
    if not total:
        return [None] * len(shares)
    found: list[float | None] = []
    seen = 0
    buckets = iter(sorted(counts.items()))
    bucket, count = next(buckets)
    for share in shares:
        rank = share * total
        while seen + count < rank:
            seen += count
            bucket, count = next(buckets)
        lower = BOUNDS_US[bucket - 1] if bucket else 0
        width = BOUNDS_US[bucket] - lower
        found.append((lower + width * (rank - seen) / count) / 1000)
    return found


class BucketMap:
    """From a server's buckets to ours, by its bounds. The same bounds cost nothing."""

    def __init__(self, bounds_us: Sequence[int]) -> None:
        last = len(BOUNDS_US) - 1
        same = list(bounds_us) == BOUNDS_US
        self._map = None if same else [min(bisect_left(BOUNDS_US, bound), last) for bound in bounds_us]

    def read(self, counts: Mapping[str, int]) -> Counts:
        """A histogram as JSON has it: keys are text."""
        if self._map is None:
            return {int(bucket): count for bucket, count in counts.items()}
        return merge({self._map[int(bucket)]: count} for bucket, count in counts.items())

"""The buckets and quantiles of histograms of durations: the server counts the durations, the dashboard stores and shows them.

The buckets are log-spaced over microseconds: 16 for each doubling (a relative width of 4 to 6 %), exact below 16 us, up to
2**31 us. Counts are sparse: a mapping of bucket to count. Histograms are merged by addition, and quantiles are computed from
merged counts. Quantiles themselves are never averaged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

Counts = dict[int, int]  # index of a bucket -> number of durations in it

_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_MAX_BITS = 31
BUCKETS = (_MAX_BITS - _SUB_BITS + 1) * _SUB


def bucket_of(microseconds: int) -> int:
    """Return the index of the bucket of a duration. The last bucket contains all longer durations, too."""
    if microseconds < _SUB:
        return microseconds if microseconds > 0 else 0
    shift = microseconds.bit_length() - 1 - _SUB_BITS
    index = (shift << _SUB_BITS) + (microseconds >> shift)
    return index if index < BUCKETS else BUCKETS - 1


def _upper_bound(index: int) -> int:
    if index < _SUB:
        return index + 1
    shift = (index >> _SUB_BITS) - 1
    return ((index & (_SUB - 1)) + _SUB + 1) << shift


# Exclusive upper bound of each bucket in us; bucket i contains [BOUNDS_US[i-1], BOUNDS_US[i]).
BOUNDS_US: list[int] = [_upper_bound(index) for index in range(BUCKETS)]


_TABLE_US = 1 << 13
_TABLE = [bucket_of(microseconds) for microseconds in range(_TABLE_US)]


class Histogram:
    """Cumulative counts of durations: `counts` by bucket, `total` durations, `sum_ns` nanoseconds."""

    __slots__ = ("counts", "sum_ns", "total")

    def __init__(self) -> None:
        self.counts: Counts = {}
        self.total = 0
        self.sum_ns = 0

    def as_json(self) -> dict[str, object]:
        return {"total": self.total, "sum_ns": self.sum_ns, "counts": self.counts}

    def add(self, nanoseconds: int, times: int = 1) -> None:
        """Count a duration `times` times."""
        us = nanoseconds // 1000
        index = _TABLE[us] if 0 <= us < _TABLE_US else bucket_of(us)
        counts = self.counts
        counts[index] = counts.get(index, 0) + times
        self.total += times
        self.sum_ns += nanoseconds * times

    def add_all(self, durations: Sequence[int]) -> None:
        """Count each of these durations, in nanoseconds, once."""
        counts = self.counts
        for nanoseconds in durations:
            us = nanoseconds // 1000
            index = _TABLE[us] if 0 <= us < _TABLE_US else bucket_of(us)
            counts[index] = counts.get(index, 0) + 1
        self.total += len(durations)
        self.sum_ns += sum(durations)

    def add_histogram(self, other: "Histogram") -> None:
        """Count all durations of another histogram."""
        counts = self.counts
        for index, count in other.counts.items():
            counts[index] = counts.get(index, 0) + count
        self.total += other.total
        self.sum_ns += other.sum_ns


def merge(histograms: Iterable[Mapping[int, int]]) -> Counts:
    """Return the counts of all histograms together."""
    total: Counts = {}
    for counts in histograms:
        for bucket, count in counts.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def subtract(later: Mapping[int, int], earlier: Mapping[int, int]) -> Counts:
    """Return the counts that were added between two cumulative readings of one histogram."""
    return {bucket: grown for bucket, count in later.items() if (grown := count - earlier.get(bucket, 0)) > 0}


def quantiles_ms(counts: Mapping[int, int], quantiles: Sequence[float]) -> list[float | None]:
    """Return the quantiles (ascending, 0 to 1) in ms, interpolated linearly inside a bucket, or None for an empty histogram."""
    if not any(counts.values()):
        return [None] * len(quantiles)
    found: list[float | None] = []
    for bucket, fraction in _positions(counts, quantiles):
        lower = BOUNDS_US[bucket - 1] if bucket else 0
        found.append((lower + (BOUNDS_US[bucket] - lower) * fraction) / 1000)
    return found


def quantile_bounds_us(counts: Mapping[int, int], quantiles: Sequence[float]) -> list[int | None]:
    """Return the upper bound, in us, of the bucket of each quantile (ascending, 0 to 1), or None for an empty histogram."""
    if not any(counts.values()):
        return [None] * len(quantiles)
    return [BOUNDS_US[bucket] for bucket, _ in _positions(counts, quantiles)]


def _positions(counts: Mapping[int, int], quantiles: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yield the bucket of each quantile, and the fraction of that bucket below it."""
    total = sum(counts.values())
    seen = 0
    buckets = iter(sorted((bucket, count) for bucket, count in counts.items() if count))
    bucket, count = next(buckets)
    for quantile in quantiles:
        rank = quantile * total
        while seen + count < rank:
            seen += count
            bucket, count = next(buckets)
        yield bucket, (rank - seen) / count

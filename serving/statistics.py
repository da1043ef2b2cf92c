"""Counters and log-spaced histograms: plain integers that merge by addition. Percentiles come from merged histograms.

Updated on the event loop's thread only. Rendered by frontends/metrics_server.py (Prometheus text, the live feed) and by
server.py (the statistics extension).
"""

from dataclasses import dataclass, field

from serving.first_response import FirstResponses
from serving.memory import NOTHING, MemoryUse

# Histogram buckets over microseconds: 16 to each doubling (relative width 4-6 %), exact below 16 us, up to 2**31 us.
_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_MAX_BITS = 31
BUCKETS = (_MAX_BITS - _SUB_BITS + 1) * _SUB


def bucket_of(microseconds: int) -> int:
    """The bucket's index of a duration in us; durations of 2**31 us and more go into the last one."""
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


# Exclusive upper bound of each bucket in us; bucket i holds [BOUNDS_US[i-1], BOUNDS_US[i]).
BOUNDS_US: list[int] = [_upper_bound(index) for index in range(BUCKETS)]


class Histogram:
    """Counts per bucket, and the sum in nanoseconds."""

    __slots__ = ("counts", "sum_ns", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.sum_ns = 0

    def add(self, nanoseconds: int) -> None:
        us = nanoseconds // 1000
        if us < _SUB:
            index = us if us > 0 else 0
        else:
            shift = us.bit_length() - 1 - _SUB_BITS
            index = (shift << _SUB_BITS) + (us >> shift)
            if index >= BUCKETS:
                index = BUCKETS - 1
        counts = self.counts
        counts[index] = counts.get(index, 0) + 1
        self.total += 1
        self.sum_ns += nanoseconds


@dataclass(slots=True)
class Duration:
    """Triton's StatisticDuration: how many, and their cumulative time."""

    count: int = 0
    ns: int = 0


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size."""

    count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True, eq=False)
class ModelStatistics:
    """What one model version has done since it was loaded; survives reloads of the same version.

    inference_count counts batch rows, execution_count model executions, success and fail requests (as Triton does).
    cancel counts requests whose client left before they were answered; they are failures with reason CANCELED.
    """

    model_name: str
    model_version: int
    inference_count: int = 0
    execution_count: int = 0
    last_inference_ms: int = 0  # unix time
    pending: int = 0  # requests accepted, not yet handed to an instance; refreshed by InferenceServer.statistics()
    in_flight: int = 0  # requests accepted, not yet answered; refreshed likewise
    memory: MemoryUse = NOTHING  # refreshed likewise
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    failures: dict[str, int] = field(default_factory=dict)  # reason (REJECTED, CANCELED, BACKEND, OTHER) -> count
    batches: dict[int, BatchStatistics] = field(default_factory=dict)  # batch size -> executions
    request_latency: Histogram = field(default_factory=Histogram)
    queue_latency: Histogram = field(default_factory=Histogram)
    compute_latency: Histogram = field(default_factory=Histogram)
    first_response: FirstResponses | None = None  # of decoupled models
    revision: int = 0  # grows with every change: the live feed sends what changed

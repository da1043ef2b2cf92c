"""The usage of a model in a span of time: sums and histograms that merge, and the figures that charts show."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter, sub
from typing import Any, TypedDict, TypeVar, cast

from repository.core.histogram import Counts, quantiles_ms, subtract

K = TypeVar("K", str, int)
# The stored form of a Usage: its fields that are not zero; a mapping is a flat list key, value, key, value, ...
Packed = dict[str, int | list[int | str]]


class Figures(TypedDict):
    """The numbers of one point of a chart. Rates are per second, times in ms, or None if nothing was measured."""

    rps: float
    mirrored: float  # requests of shadows, not of clients
    p50: float | None
    p95: float | None
    p99: float | None
    errors: float
    cancelled: float
    failed_model: float  # these three are Triton's failure reasons; the fourth, CANCELED, is `cancelled`
    failed_rejected: float
    failed_other: float
    inferences: float
    queue_ms: float | None
    compute_ms: float | None  # input, inference and output together
    input_ms: float | None
    infer_ms: float | None
    output_ms: float | None
    batch: dict[str, int]  # batch size -> executions
    failures: dict[str, int]  # reason, in Triton's words -> requests
    cache_share: float | None  # from 0 to 1
    pending: int
    in_flight: int


@dataclass(slots=True)
class Usage:
    """The usage of a version, a model or a whole server in one span of time.

    success, fail and cancel count requests of clients. mirrored counts requests of shadows. inferences counts rows of batches.
    executions counts runs of the model. compute is input, inference and output together; input_ns and output_ns are parts of
    compute_ns, and 0 in history of versions that did not report them. pending and in_flight are the highest
    readings of the span. request, queue and compute are histograms of durations. batches: batch size -> executions. batch_ns:
    batch size -> the time of these executions. gaps: a histogram of the times between arrivals; under load, a sample of them.
    failures: reason -> requests. cache_hits and cache_misses count lookups in the response cache.
    """

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    cancel: int = 0
    mirrored: int = 0
    queue_count: int = 0
    queue_ns: int = 0
    compute_count: int = 0
    compute_ns: int = 0
    input_ns: int = 0
    output_ns: int = 0
    inferences: int = 0
    executions: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    pending: int = 0
    in_flight: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    request: Counts = field(default_factory=dict)
    queue: Counts = field(default_factory=dict)
    compute: Counts = field(default_factory=dict)
    batch_ns: dict[int, int] = field(default_factory=dict)
    gaps: Counts = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        return not any(_all_of(self))

    def pack(self) -> Packed:
        """Return the stored form."""
        packed: Packed = {}
        for name, value in zip(_NAMES, _all_of(self), strict=True):
            if value:
                packed[name] = [item for pair in value.items() for item in pair] if isinstance(value, dict) else value
        return packed


_PEAKS = ("pending", "in_flight")
_COUNTS = tuple(entry.name for entry in fields(Usage) if entry.default_factory is dict)
_NAMES = tuple(entry.name for entry in fields(Usage))  # the sums, the peaks and the counts, in this order
SUMS = _NAMES[: -len(_PEAKS) - len(_COUNTS)]
# Servers send usages each second, so they are read by functions that take all fields at once.
_all_of, _sums_of, _counts_of = attrgetter(*_NAMES), attrgetter(*SUMS), attrgetter(*_COUNTS)


def unpack(packed: Packed) -> Usage:
    """Return the usage of a stored form."""
    usage = Usage()
    for name, value in packed.items():
        whole = dict(zip(value[::2], value[1::2], strict=True)) if isinstance(value, list) else value
        setattr(usage, name, whole)
    return usage


def combine(usages: Iterable[Usage]) -> Usage:
    """Return the usage of consecutive spans together: sums add up, and the highest peak counts."""
    several = list(usages)
    if not several:
        return Usage()
    sums = map(sum, zip(*map(_sums_of, several), strict=True))
    counts: list[dict[Any, int]] = [{} for _ in _COUNTS]
    for usage in several:
        for total, more in zip(counts, _counts_of(usage), strict=True):
            if more:
                _add(total, more)
    peaks = max(one.pending for one in several), max(one.in_flight for one in several)
    values: list[Any] = [*sums, *peaks, *counts]
    return Usage(*values)


def combine_packed(several: Iterable[Packed], without: Collection[str] = ()) -> Packed:
    """Return the stored form of `combine`, without some fields, without unpacking what may be rows of many servers."""
    total: Packed = {}
    counts: dict[str, dict[int | str, Any]] = {}
    for packed in several:
        for name, value in packed.items():
            if name in without:
                continue
            if isinstance(value, list):
                found = counts.setdefault(name, {})
                for key, count in zip(value[::2], value[1::2], strict=True):
                    found[key] = found.get(key, 0) + count
            else:
                before = cast(int, total.get(name, 0))
                total[name] = max(before, value) if name in _PEAKS else before + value
    return total | {name: [item for pair in one.items() for item in pair] for name, one in counts.items()}


def combine_side_by_side(usages: list[Usage]) -> Usage:
    """Return the usage of several versions or models in the same span: peaks add up too, because their requests wait at the
    same time."""
    total = combine(usages)
    for name in _PEAKS:
        setattr(total, name, sum(getattr(usage, name) for usage in usages))
    return total


def since(now: Usage, before: Usage) -> Usage:
    """Return the difference of two readings of cumulative counters, with pending and in_flight as in `now`.

    If a sum is lower than before, the version was loaded again, and its counters began at zero.
    """
    sums = [*map(sub, _sums_of(now), _sums_of(before))]
    if min(sums) < 0:
        before, sums = Usage(), [*_sums_of(now)]
    counts = [
        subtract(more, less) if more else {} for more, less in zip(_counts_of(now), _counts_of(before), strict=True)
    ]
    values: list[Any] = [*sums, now.pending, now.in_flight, *counts]
    return Usage(*values)


def _add(total: dict[K, int], counts: dict[K, int]) -> None:
    for key, count in counts.items():
        total[key] = total.get(key, 0) + count


def figures(usage: Usage, seconds: float) -> Figures:
    """Return the numbers of a chart for a span of this many seconds."""
    p50, p95, p99 = (_rounded(value) for value in quantiles_ms(usage.request, (0.5, 0.95, 0.99)))
    return {
        "rps": _four_digits((usage.success + usage.fail) / seconds),
        "mirrored": _four_digits(usage.mirrored / seconds),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "errors": _four_digits(max(0, usage.fail - usage.cancel) / seconds),
        "cancelled": _four_digits(usage.cancel / seconds),
        "failed_model": _four_digits(usage.failures.get("BACKEND", 0) / seconds),
        "failed_rejected": _four_digits(usage.failures.get("REJECTED", 0) / seconds),
        "failed_other": _four_digits(usage.failures.get("OTHER", 0) / seconds),
        "inferences": _four_digits(usage.inferences / seconds),
        "queue_ms": _mean_ms(usage.queue_ns, usage.queue_count),
        "compute_ms": _mean_ms(usage.compute_ns, usage.compute_count),
        "input_ms": _mean_ms(usage.input_ns, usage.compute_count),
        "infer_ms": _mean_ms(usage.compute_ns - usage.input_ns - usage.output_ns, usage.compute_count),
        "output_ms": _mean_ms(usage.output_ns, usage.compute_count),
        "batch": {str(size): count for size, count in sorted(usage.batches.items())},
        "failures": usage.failures,
        "cache_share": _share(usage.cache_hits, usage.cache_hits + usage.cache_misses),
        "pending": usage.pending,
        "in_flight": usage.in_flight,
    }


def instance_key(version: int, label: str) -> str:
    """Return the name of an instance among those of all versions of its model."""
    return f"{version} {label}"


def server_key(name: str) -> str:
    """Return the name of a server among series, in which versions and instances begin with a digit."""
    return f"on {name}"


def _mean_ms(nanoseconds: int, count: int) -> float | None:
    return _four_digits(nanoseconds / count / 1e6) if count else None


def _share(part: int, whole: int) -> float | None:
    return _four_digits(part / whole) if whole else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else _four_digits(value)


def _four_digits(value: float) -> float:
    """Round to four significant digits: more would be noise."""
    return float(f"{value:.4g}")

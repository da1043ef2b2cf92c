"""What a model did in a span of time: sums and histograms that merge, and the numbers that a chart shows of them."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from repository.core.histogram import Counts, quantiles_ms, subtract

_SUMS = (
    "success",
    "success_ns",
    "fail",
    "cancel",
    "queue_count",
    "queue_ns",
    "compute_count",
    "compute_ns",
    "inferences",
    "executions",
    "cache_hits",
    "cache_misses",
)
_PEAKS = ("pending", "in_flight")
_COUNTS = ("failures", "batches", "request", "queue", "compute")
# The reasons that are shown of failed requests, in Triton's words; CANCELED has its own figure.
_REASONS = {"failed_model": "BACKEND", "failed_rejected": "REJECTED", "failed_other": "OTHER"}


@dataclass(slots=True)
class Usage:
    """Of one model or version, or of all together, in one span.

    success, fail and cancel count requests; inferences rows of batches; executions runs of the model. compute is input,
    inference and output together. pending and in_flight are the highest readings. request, queue and compute are
    histograms of durations; batches: batch size -> executions; failures: reason -> requests. cache_hits and cache_misses count
    the requests that asked the response cache.
    """

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    cancel: int = 0
    queue_count: int = 0
    queue_ns: int = 0
    compute_count: int = 0
    compute_ns: int = 0
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

    @property
    def idle(self) -> bool:
        return not any(getattr(self, entry.name) for entry in fields(self))

    def pack(self) -> dict[str, Any]:
        """For storage: only what is not zero; counts as flat lists key, count, key, count, ..."""
        packed: dict[str, Any] = {}
        for name in (*_SUMS, *_PEAKS):
            if value := getattr(self, name):
                packed[name] = value
        for name in _COUNTS:
            if counts := getattr(self, name):
                packed[name] = [item for pair in counts.items() for item in pair]
        return packed


def unpack(packed: dict[str, Any]) -> Usage:
    values = dict(packed)
    for name in _COUNTS:
        if name in values:
            flat = values[name]
            values[name] = dict(zip(flat[::2], flat[1::2], strict=True))
    return Usage(**values)


def combine(usages: Iterable[Usage]) -> Usage:
    """Of several spans of one model: sums add up, peaks stay peaks."""
    total = Usage()
    for usage in usages:
        for name in _SUMS:
            setattr(total, name, getattr(total, name) + getattr(usage, name))
        for name in _PEAKS:
            setattr(total, name, max(getattr(total, name), getattr(usage, name)))
        for name in _COUNTS:
            _add(getattr(total, name), getattr(usage, name))
    return total


def combine_side_by_side(usages: list[Usage]) -> Usage:
    """Of several versions or models in the same span: what waits in them waits at the same time, so it adds up."""
    total = combine(usages)
    for name in _PEAKS:
        setattr(total, name, sum(getattr(usage, name) for usage in usages))
    return total


def since(now: Usage, before: Usage) -> Usage:
    """What happened between two readings of cumulative counters: sums and counts subtract, peaks are readings of now."""
    sums: dict[str, Any] = {name: getattr(now, name) - getattr(before, name) for name in _SUMS}
    counts: dict[str, Any] = {name: subtract(getattr(now, name), getattr(before, name)) for name in _COUNTS}
    return replace(now, **sums, **counts)


def _add(total: dict[Any, int], counts: dict[Any, int]) -> None:
    for key, count in counts.items():
        total[key] = total.get(key, 0) + count


def figures(usage: Usage, seconds: float) -> dict[str, Any]:
    """The numbers of one point of a chart. Rates are per second, times in ms; None where nothing was measured."""
    p50, p95, p99 = (_rounded(value) for value in quantiles_ms(usage.request, (0.5, 0.95, 0.99)))
    return {
        "rps": _rounded((usage.success + usage.fail) / seconds),
        "p50": p50,
        "p95": p95,
        "p99": p99,
        "errors": _rounded(max(0, usage.fail - usage.cancel) / seconds),
        "cancelled": _rounded(usage.cancel / seconds),
        **{name: _rounded(usage.failures.get(reason, 0) / seconds) for name, reason in _REASONS.items()},
        "inferences": _rounded(usage.inferences / seconds),
        "queue_ms": _mean_ms(usage.queue_ns, usage.queue_count),
        "compute_ms": _mean_ms(usage.compute_ns, usage.compute_count),
        "batch": {str(size): count for size, count in sorted(usage.batches.items())},
        "failures": usage.failures,
        "cache_share": _share(usage.cache_hits, usage.cache_hits + usage.cache_misses),
        "pending": usage.pending,
        "in_flight": usage.in_flight,
    }


def _mean_ms(nanoseconds: int, count: int) -> float | None:
    return _rounded(nanoseconds / count / 1e6) if count else None


def _share(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _rounded(value: float | None) -> float | None:
    """Four significant digits: more is noise on the wire."""
    return None if value is None else float(f"{value:.4g}")

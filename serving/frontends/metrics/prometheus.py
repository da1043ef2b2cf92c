"""Renders /metrics at each scrape: Triton's metric families, with Triton's names and labels, and Slipway's families.

Sources: Triton, docs/user_guide/metrics.md (the nv_* names); Prometheus, exposition formats, text 0.0.4.
prometheus_client is not used, because it forces the suffix `_total` on counters, which Triton's names do not have.
"""

import functools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from repository.core.histogram import BOUNDS_US, Counts, Histogram
from serving.frontends.metrics.hardware import Gpu, HardwareReadings
from serving.frontends.metrics.summaries import Summaries
from serving.models.repository_index import VersionHealth
from serving.resources.response_cache import ResponseCache
from serving.telemetry.label_text import escape_label
from serving.telemetry.request_log import RequestLog
from serving.telemetry.statistics import FIRST_RESPONSE_FAMILY, ModelStatistics
from serving.traffic.arms import Arm
from serving.traffic.figures import ShadowFigures
from serving.traffic.rollout import Rollout

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DOUBLINGS_US = [1 << power for power in range(5, 27)]
# The bounds within a doubling, in sixteenths of its first bound. Each bound is at most 1.1 times the previous bound, so an
# interpolated quantile is at most a tenth wrong.
_STEPS = (16, 17, 18, 19, 20, 22, 24, 26, 28, 30)
BATCH_BOUNDS = [1 << power for power in range(11)]
_BATCH_LE = [*map(str, BATCH_BOUNDS), "+Inf"]
MODELS_IN_PIECE = 50
HISTOGRAMS_IN_PIECE = 5
_NOT_IN_A_LABEL = re.compile(r"\W", re.ASCII)
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

# name, attribute of ModelStatistics (in nanoseconds if it ends with .ns), help. The lean level has the first row of each table.
_COUNTERS = [
    ("nv_inference_request_success", "success.count", "Number of successful inference requests"),
    ("nv_inference_count", "inference_count", "Number of inferences performed, without cached requests"),
    ("nv_inference_exec_count", "execution_count", "Number of model executions, without cached requests"),
    (
        "slipway_inline_execution_count",
        "inline_count",
        "Number of model executions on the server's event loop, without a thread",
    ),
    ("nv_inference_request_duration_us", "success.ns", "Cumulative inference request duration in microseconds"),
    ("nv_inference_queue_duration_us", "queue.ns", "Cumulative inference queuing duration in microseconds"),
    ("nv_inference_compute_input_duration_us", "compute_input.ns", "Cumulative compute input duration in microseconds"),
    ("nv_inference_compute_infer_duration_us", "compute_infer.ns", "Cumulative compute duration in microseconds"),
    (
        "nv_inference_compute_output_duration_us",
        "compute_output.ns",
        "Cumulative compute output duration in microseconds",
    ),
]

# Counters of the models whose answers the response cache keeps.
_CACHE_COUNTERS = [
    ("nv_cache_num_hits_per_model", "cache_hit.count", "Number of cache hits per model"),
    ("nv_cache_num_misses_per_model", "cache_miss.count", "Number of cache misses per model"),
    ("nv_cache_hit_duration_per_model", "cache_hit.ns", "Total cache hit duration per model, in microseconds"),
    ("nv_cache_miss_duration_per_model", "cache_miss.ns", "Total cache miss duration per model, in microseconds"),
]

_HISTOGRAMS: list[tuple[str, str, Callable[[ModelStatistics], Histogram]]] = [
    (
        "slipway_request_duration_seconds",
        "Time from a request's arrival to its answer, if it did not fail",
        lambda m: m.request_latency,
    ),
    ("slipway_queue_duration_seconds", "Time a request waited for an instance", lambda m: m.queue_latency),
    ("slipway_compute_duration_seconds", "Time that an execution of the model took", lambda m: m.compute_latency),
]

_GAUGES: list[tuple[str, str, Callable[[ModelStatistics], float | None]]] = [
    (
        "nv_inference_pending_request_count",
        "Number of requests that wait for an instance now",
        lambda m: m.status.pending,
    ),
    ("nv_model_load_duration_secs", "How long the last load took, in seconds", lambda m: m.load_s),
    ("slipway_model_release", "Number of the release that the version serves", lambda m: m.status.release),
]

# Gauges of the whole cache. Source: the README of triton-inference-server/local_cache.
_CACHE_GAUGES: list[tuple[str, str, Callable[[ResponseCache], int | float]]] = [
    ("nv_cache_util", "Cache utilization [0.0 - 1.0]", lambda c: c.used / c.size),
    ("nv_cache_num_entries", "Number of responses stored in response cache", len),
    ("nv_cache_num_lookups", "Number of cache lookups in response cache", lambda c: c.hits + c.misses),
    ("nv_cache_num_hits", "Number of cache hits in response cache", lambda c: c.hits),
    ("nv_cache_num_misses", "Number of cache misses in response cache", lambda c: c.misses),
    ("nv_cache_num_evictions", "Number of cache evictions in response cache", lambda c: c.evictions),
    ("nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds", lambda c: c.lookup_ns // 1000),
    ("nv_cache_insertion_duration", "Total cache insertion duration, in microseconds", lambda c: c.insertion_ns // 1000),
]  # fmt: skip

# This server has no pinned memory pool, so its size is 0.
_PINNED_MEMORY = (
    ("nv_pinned_memory_pool_total_bytes", "gauge", "Pinned memory pool total memory size, in bytes", 0),
    ("nv_pinned_memory_pool_used_bytes", "gauge", "Pinned memory pool used memory size, in bytes", 0),
)

_GPU_GAUGES: list[tuple[str, str, str, Callable[[Gpu], int | float | None]]] = [
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0]", lambda g: g.utilization),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", lambda g: g.memory_total),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", lambda g: g.memory_used),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", lambda g: g.power_w),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", lambda g: g.power_limit_w),
    ("nv_energy_consumption", "counter", "GPU energy consumption in joules since the server started", lambda g: g.energy_j),
]  # fmt: skip


class LatencyBuckets:
    """The exported buckets of latencies, from 32 us to 67 s: 1, 2, 5 or 10 buckets for each doubling, or 0 for none but +Inf.

    The bounds of 10 buckets include those of 1, 2 and 5. All are also bounds of the internal, finer buckets.
    """

    def __init__(self, to_a_doubling: int, lean: bool = False) -> None:
        """lean: a histogram without counts has only +Inf. By default it has one bucket for each doubling: with all buckets,
        the many versions without requests would make the page ten times as long."""
        self.bounds_us: list[int] = []
        if to_a_doubling:
            steps = _STEPS[:: len(_STEPS) // to_a_doubling]
            self.bounds_us = [start * step // 16 for start in _DOUBLINGS_US[:-1] for step in steps] + _DOUBLINGS_US[-1:]
        self.le = _le(self.bounds_us)
        self.le_unused = _le([] if lean or not to_a_doubling else _DOUBLINGS_US)
        self._of_fine = [bisect_left(self.bounds_us, bound) for bound in BOUNDS_US]

    def merged(self, counts: Counts) -> list[int]:
        """Return the count of each exported bucket. counts: the counts of the finer buckets."""
        merged = [0] * len(self.le)
        for index, count in counts.items():
            merged[self._of_fine[index]] += count
        return merged


def _le(bounds_us: list[int]) -> list[str]:
    return [*(f"{bound / 1e6:.12g}" for bound in bounds_us), "+Inf"]


FINEST = LatencyBuckets(len(_STEPS))


class _Model(NamedTuple):
    label_values: dict[str, str]
    labels: str  # the text between the braces
    statistics: ModelStatistics
    buckets: LatencyBuckets


class ServerHealth(NamedTuple):
    """The health of the server and of its models. started_s: when the server started, in unix seconds. repositories:
    repository -> why its last listing failed, or "". held: how many models are kept by --max-unloads-per-poll. unready: a
    kind, as "new" -> the models that do not serve. from_cache: repository in the cloud -> whether its models are those that the
    cache had at the start."""

    ready: bool
    started_s: float
    versions: list[VersionHealth]
    repositories: Mapping[str, str]
    held: int
    unready: Mapping[str, list[str]]
    from_cache: Mapping[str, bool]


class _RolloutArm(NamedTuple):
    """An arm of a rollout."""

    labels: str  # the text between the braces
    rollout: Rollout
    arm: Arm
    buckets: LatencyBuckets

    @property
    def shadow(self) -> ShadowFigures | None:
        """The figures of the rollout's shadow, or None if this is not the candidate or there is no shadow."""
        mirror = self.rollout.mirror if self.arm is self.rollout.candidate else None
        return mirror.figures if mirror is not None else None


T = TypeVar("T")
Samples = Callable[[_Model], Iterable[str]]  # a model -> its lines of one family
ArmSamples = Callable[[str, _RolloutArm], Iterable[str]]  # a family's name, an arm -> its lines of that family


def render(
    models: Iterable[ModelStatistics],
    hardware: HardwareReadings,
    cache: ResponseCache | None = None,
    request_log: RequestLog | None = None,
    summaries: Summaries | None = None,
    unserved: Mapping[str, int] = MappingProxyType({}),
    counter_latencies: bool = True,
    cpu: bool = True,
    rollouts: Iterable[Rollout] = (),
    buckets: LatencyBuckets = FINEST,
    health: ServerHealth | None = None,
    lean: bool = False,
) -> Iterator[str]:
    """Yield the page in pieces, each of which takes about a millisecond, so that the caller can answer requests between them.

    Families without samples are left out. counter_latencies: the setting of --metrics-config; if False, the cumulative
    durations and the counters of the cache are left out. lean: a version has its requests, failures, waiting requests, memory
    and one histogram.
    """
    yield from of_models(models, summaries, counter_latencies, buckets, lean)
    if cache is not None:
        yield "".join(f"{_header(name, 'gauge', text)}{name} {value(cache)}\n" for name, text, value in _CACHE_GAUGES)
    if request_log is not None:
        name = "slipway_request_log_dropped"
        yield f"{_header(name, 'counter', 'Samples that the request log lost')}{name} {request_log.dropped}\n"
    if unserved:
        name = "slipway_unserved_request_count"
        rows = "".join(f"{name}{{{_labels({'model': model})}}} {count}\n" for model, count in sorted(unserved.items()))
        yield f"{_header(name, 'counter', 'Requests to a model of which no version served')}{rows}"
    yield from of_rollouts(list(rollouts), buckets)
    if health is not None:
        yield from _health(health)
    yield _machine(hardware, cpu)


def of_models(
    models: Iterable[ModelStatistics],
    summaries: Summaries | None = None,
    counter_latencies: bool = True,
    buckets: LatencyBuckets = FINEST,
    lean: bool = False,
) -> Iterator[str]:
    """Yield the metrics of these models; see `render`."""
    kept = 1 if lean else None  # rows of each table
    labelled = [_Model(values := _label_values(model), _labels(values), model, buckets) for model in models]
    for name, attribute, text in _COUNTERS[:kept]:
        if counter_latencies or not name.endswith("_duration_us"):
            yield from _family(name, "counter", text, labelled, _counter_lines(name, attribute))
    if counter_latencies and not lean:
        caching = [model for model in labelled if model.statistics.caches]
        for name, attribute, text in _CACHE_COUNTERS:
            yield from _family(name, "counter", text, caching, _counter_lines(name, attribute))
    yield from _family(
        "nv_inference_request_failure", "counter", "Number of failed inference requests", labelled, _failures
    )
    for name, text, gauge in _GAUGES[:kept]:
        yield from _family(name, "gauge", text, labelled, _gauge_lines(name, gauge))
    yield from _family(
        "slipway_model_memory_bytes", "gauge", "Memory that a loaded model holds, by device", labelled, _memory_lines
    )
    for name, text, histogram in _HISTOGRAMS[:kept]:
        lines = functools.partial(_latency_lines, name, histogram)
        yield from _family(name, "histogram", text, labelled, lines)
    if not lean:
        yield from _family("slipway_batch_size", "histogram", "Rows of each model execution", labelled, _batch_lines)
        first = "Duration from request to first response in milliseconds"
        yield from _family(FIRST_RESPONSE_FAMILY, "histogram", first, labelled, _first_response_lines)
    if summaries is not None:
        yield from summaries.render([(model.labels, model.statistics) for model in labelled])


def of_rollouts(rollouts: list[Rollout], buckets: LatencyBuckets = FINEST) -> Iterator[str]:
    """Yield the figures of rollouts' arms, and of shadows, which have the candidate's labels. An arm on another server
    has an empty version and the label `remote`, the address of that server."""
    arms = [
        _RolloutArm(_arm_labels(one, arm), one, arm, buckets) for one in rollouts for arm in (one.stable, one.candidate)
    ]
    for name, kind, text, lines in _ARM_FAMILIES:
        yield from _family(name, kind, text, arms, functools.partial(lines, name))


def _arm_labels(rollout: Rollout, arm: Arm) -> str:
    labels = {"model": rollout.identifier.name, "version": str(arm.version or ""), "arm": arm.name}
    if rollout.identifier.namespace:
        labels["namespace"] = rollout.identifier.namespace
    if arm.remote is not None:
        labels["remote"] = arm.remote.url
    return _labels(labels)


def _of_arm(value: Callable[[_RolloutArm], float]) -> ArmSamples:
    return lambda name, one: [f"{name}{{{one.labels}}} {value(one)}"]


def _breached(name: str, one: _RolloutArm) -> list[str]:
    if one.arm is not one.rollout.candidate:
        return []
    return [f"{name}{{{one.labels}}} {int(one.rollout.breached is not None)}"]


def _of_shadow(figure: str) -> ArmSamples:
    def lines(name: str, one: _RolloutArm) -> list[str]:
        figures = one.shadow
        return [] if figures is None else [f"{name}{{{one.labels}}} {getattr(figures, figure)}"]

    return lines


def _dropped(name: str, one: _RolloutArm) -> list[str]:
    dropped = one.shadow.dropped if one.shadow is not None else {}
    return [f'{name}{{{one.labels},reason="{reason}"}} {count}' for reason, count in sorted(dropped.items())]


_ARM_FAMILIES: tuple[tuple[str, str, str, ArmSamples], ...] = (
    (
        "slipway_rollout_weight",
        "gauge",
        "Percentage of the requests that an arm gets",
        _of_arm(lambda one: one.rollout.share(one.arm)),
    ),
    (
        "slipway_rollout_requests_total",
        "counter",
        "Requests that an arm has answered or failed",
        _of_arm(lambda one: one.arm.figures.requests),
    ),
    (
        "slipway_rollout_errors_total",
        "counter",
        "Requests of an arm that failed without a mistake of the client",
        _of_arm(lambda one: one.arm.figures.errors),
    ),
    (
        "slipway_rollout_request_duration_seconds",
        "histogram",
        "Time from a request's arrival to its answer, if it did not fail",
        lambda name, one: _merged_lines(name, one.labels, one.arm.figures.latency, one.buckets),
    ),
    ("slipway_rollout_breached", "gauge", "Whether a guardrail has taken the candidate out", _breached),
    (
        "slipway_shadow_compared_total",
        "counter",
        "Answers of the candidate that were compared with stable's",
        _of_shadow("compared"),
    ),
    (
        "slipway_shadow_disagreed_total",
        "counter",
        "Compared answers that are beyond the tolerance",
        _of_shadow("disagreed"),
    ),
    (
        "slipway_shadow_mismatched_total",
        "counter",
        "Compared answers with other names, shapes or datatypes",
        _of_shadow("mismatched"),
    ),
    (
        "slipway_shadow_failed_total",
        "counter",
        "Mirrors that the candidate failed or did not answer in time",
        _of_shadow("failed"),
    ),
    ("slipway_shadow_dropped_total", "counter", "Mirrors that were dropped, by reason", _dropped),
)


def _family(name: str, kind: str, text: str, models: list[T], lines: Callable[[T], Iterable[str]]) -> Iterator[str]:
    header = _header(name, kind, text)
    size = HISTOGRAMS_IN_PIECE if kind == "histogram" else MODELS_IN_PIECE
    for start in range(0, len(models), size):
        piece = models[start : start + size]
        rows = "".join(f"{line}\n" for model in piece for line in lines(model))
        if rows:
            yield header + rows
            header = ""


def _counter_lines(name: str, attribute: str) -> Samples:
    value = attrgetter(attribute)
    unit = 1000 if attribute.endswith(".ns") else 1
    return lambda m: [f"{name}{{{m.labels}}} {value(m.statistics) // unit}"]


def _gauge_lines(name: str, gauge: Callable[[ModelStatistics], float | None]) -> Samples:
    def lines(model: _Model) -> list[str]:
        value = gauge(model.statistics)
        return [] if value is None else [f"{name}{{{model.labels}}} {value}"]

    return lines


def _failures(model: _Model) -> list[str]:
    counts = model.statistics.failures
    labels = {reason: _labels(model.label_values | {"reason": reason}) for reason in REASONS}
    return [f"nv_inference_request_failure{{{labels[reason]}}} {counts.get(reason, 0)}" for reason in REASONS]


def _memory_lines(model: _Model) -> list[str]:
    memory = model.statistics.status.memory
    held = [("cpu", memory.host), *((f"gpu:{device}", size) for device, size in memory.gpus)]
    return [
        f'slipway_model_memory_bytes{{{model.labels},device="{device}",basis="{memory.basis}"}} {size}'
        for device, size in held
    ]


def _latency_lines(name: str, histogram_of: Callable[[ModelStatistics], Histogram], model: _Model) -> list[str]:
    return _merged_lines(name, model.labels, histogram_of(model.statistics), model.buckets)


def _merged_lines(name: str, labels: str, histogram: Histogram, buckets: LatencyBuckets) -> list[str]:
    """Return a histogram in the exported buckets."""
    if not histogram.total:
        return _histogram_lines(name, labels, buckets.le_unused, [0] * len(buckets.le_unused), 0.0)
    return _histogram_lines(name, labels, buckets.le, buckets.merged(histogram.counts), histogram.sum_ns / 1e9)


def _batch_lines(model: _Model) -> list[str]:
    merged = [0] * (len(BATCH_BOUNDS) + 1)
    rows = 0
    for size, batch in model.statistics.batches.items():
        merged[min(max(size - 1, 0).bit_length(), len(BATCH_BOUNDS))] += batch.count
        rows += size * batch.count
    if not model.buckets.bounds_us:
        return _histogram_lines("slipway_batch_size", model.labels, _BATCH_LE[-1:], [sum(merged)], rows)
    return _histogram_lines("slipway_batch_size", model.labels, _BATCH_LE, merged, rows)


def _first_response_lines(model: _Model) -> list[str]:
    found = model.statistics.first_response
    if found is None:
        return []
    bounds = [*(f"{bound:.12g}" for bound in found.bounds_ms), "+Inf"]
    return _histogram_lines(FIRST_RESPONSE_FAMILY, model.labels, bounds, found.counts, found.sum_ms)


def _histogram_lines(name: str, labels: str, bounds: list[str], counts: list[int], total: float) -> list[str]:
    cumulative = list(accumulate(counts))
    begin = f'{name}_bucket{{{labels},le="'
    lines = [f'{begin}{bound}"}} {count}' for bound, count in zip(bounds, cumulative, strict=True)]
    return [*lines, f"{name}_sum{{{labels}}} {total}", f"{name}_count{{{labels}}} {cumulative[-1]}"]


def _health(health: ServerHealth) -> Iterator[str]:
    """Yield the health of the server, then that of each version that should serve."""
    for name, text, value in (
        ("slipway_server_ready", "Whether the server is ready, without asking its models", int(health.ready)),
        ("slipway_server_start_time_seconds", "When the server started, in unix time", round(health.started_s, 3)),
        ("slipway_repository_held_models", "Models that are gone from the repositories, but are kept", health.held),
    ):
        yield f"{_header(name, 'gauge', text)}{name} {value}\n"
    listed = [({"repository": place}, int(not problem)) for place, problem in health.repositories.items()]
    cached = [({"repository": place}, int(value)) for place, value in health.from_cache.items()]
    unready = [({"kind": kind}, len(names)) for kind, names in health.unready.items()]
    for name, text, rows in (
        ("slipway_repository_listed", "Whether the last listing of a repository succeeded", listed),
        ("slipway_repository_from_cache", "Whether the models are cached ones, without an answer of the store", cached),
        (
            "slipway_server_unready_models",
            "Models that should serve and do not: expected, failed at the start, or new since",
            unready,
        ),
    ):
        lines = "".join(f"{name}{{{_labels(labels)}}} {value}\n" for labels, value in rows)
        yield _header(name, "gauge", text) + lines if lines else ""
    for name, text, field in (
        ("slipway_model_ready", "Whether a version that should serve can answer", "ready"),
        ("slipway_model_failed", "Whether the last load of a version failed", "failed"),
    ):
        yield from _family(name, "gauge", text, health.versions, functools.partial(_health_lines, name, field))


def _health_lines(name: str, field: str, row: VersionHealth) -> list[str]:
    labels = {"model": row.model.name, "version": row.version}
    if row.model.namespace:
        labels["namespace"] = row.model.namespace
    return [f"{name}{{{_labels(labels)}}} {int(getattr(row, field))}"]


def _machine(hardware: HardwareReadings, cpu: bool) -> str:
    parts = []
    machine, gpus = hardware.host(), hardware.gpus()
    for name, kind, text, value in _GPU_GAUGES:
        read = [(_labels({"gpu_uuid": gpu.uuid}), value(gpu)) for gpu in gpus]
        lines = [f"{name}{{{labels}}} {number}\n" for labels, number in read if number is not None]
        if lines:
            parts += [_header(name, kind, text), *lines]
    process = hardware.process()
    cpu_gauges = (
        ("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", machine.cpu_utilization),
        ("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", machine.memory_total),
        ("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", machine.memory_used),
    )
    for name, kind, text, number in (
        *(cpu_gauges if cpu else ()),
        *_PINNED_MEMORY,
        ("slipway_process_cpu_seconds", "counter", "CPU time of the server and its children", process.cpu_seconds),
        ("slipway_process_resident_bytes", "gauge", "Memory of the server and its children", process.rss_bytes),
    ):
        parts += [_header(name, kind, text), f"{name} {number}\n"]
    return "".join(parts)


def _header(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _label_values(model: ModelStatistics) -> dict[str, str]:
    """Return a model's labels, with the namespace if there is one, and the configuration's metric_tags. As in Triton, "_" is
    put before the names of metric_tags."""
    namespace = {"namespace": model.namespace} if model.namespace else {}
    tags = {"_" + _NOT_IN_A_LABEL.sub("_", name): value for name, value in model.tags.items()}
    return {"model": model.model_name, "version": str(model.model_version)} | namespace | tags


def _labels(labels: dict[str, str]) -> str:
    """Return labels as text, sorted by name, as in Triton."""
    return ",".join(f'{name}="{escape_label(text)}"' for name, text in sorted(labels.items()))

"""Prometheus text with Triton's names and labels, and Slipway's own histograms. Rendered only when scraped.

Source of the nv_* names: Triton, docs/user_guide/metrics.md. prometheus_client is not used: it forces a `_total` suffix
that those names do not have.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from operator import attrgetter

from serving.frontends.hardware import Gpu, Hardware
from serving.statistics import BOUNDS_US, Histogram, ModelStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Upper bounds of the exported buckets, in microseconds: 64 us to 67 s, doubling. Each is a bound of the fine buckets too.
LATENCY_BOUNDS_US = [1 << power for power in range(6, 27)]
BATCH_BOUNDS = [1 << power for power in range(11)]
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")

# name, attribute of ModelStatistics (nanoseconds where the name says duration), help
_COUNTERS = [
    ("nv_inference_request_success", "success.count", "Number of successful inference requests"),
    ("nv_inference_count", "inference_count", "Number of inferences performed, without cached requests"),
    ("nv_inference_exec_count", "execution_count", "Number of model executions, without cached requests"),
    ("nv_inference_request_duration_us", "success.ns", "Cumulative inference request duration in microseconds"),
    ("nv_inference_queue_duration_us", "queue.ns", "Cumulative inference queuing duration in microseconds"),
    ("nv_inference_compute_input_duration_us", "compute_input.ns", "Cumulative compute input duration in microseconds"),
    ("nv_inference_compute_infer_duration_us", "compute_infer.ns", "Cumulative compute duration in microseconds"),
    (
        "nv_inference_compute_output_duration_us",
        "compute_output.ns",
        "Cumulative compute output duration in microseconds",
    ),
    ("nv_cache_num_hits_per_model", "cache_hit.count", "Number of cache hits per model"),
    ("nv_cache_num_misses_per_model", "cache_miss.count", "Number of cache misses per model"),
    ("nv_cache_hit_duration_per_model", "cache_hit.ns", "Total cache hit duration per model, in microseconds"),
    ("nv_cache_miss_duration_per_model", "cache_miss.ns", "Total cache miss duration per model, in microseconds"),
]

_HISTOGRAMS: list[tuple[str, str, Callable[[ModelStatistics], Histogram]]] = [
    ("slipway_request_duration_seconds", "Time from a request's arrival to its answer", lambda m: m.request_latency),
    ("slipway_queue_duration_seconds", "Time a request waited for an instance", lambda m: m.queue_latency),
    ("slipway_compute_duration_seconds", "Time a request's batch took to execute", lambda m: m.compute_latency),
]

_GPU_GAUGES: list[tuple[str, str, str, Callable[[Gpu], int | float | None]]] = [
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0]", lambda g: g.utilization),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", lambda g: g.memory_total),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", lambda g: g.memory_used),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", lambda g: g.power_w),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", lambda g: g.power_limit_w),
    ("nv_energy_consumption", "counter", "GPU energy consumption in joules since the server started", lambda g: g.energy_j),
]  # fmt: skip


def render(models: Iterable[ModelStatistics], hardware: Hardware) -> bytes:
    """The whole page."""
    lines: list[str] = []
    labelled = [({"model": m.model_name, "version": str(m.model_version)}, m) for m in models]
    for name, attribute, text in _COUNTERS:
        value = attrgetter(attribute)
        unit = 1000 if attribute.endswith(".ns") else 1
        _family(lines, name, "counter", text, ((labels, value(m) // unit) for labels, m in labelled))
    failures = ((labels | {"reason": r}, m.failures.get(r, 0)) for labels, m in labelled for r in REASONS)
    _family(lines, "nv_inference_request_failure", "counter", "Number of failed inference requests", failures)
    pending = "Instantaneous number of pending requests awaiting execution per-model."
    _family(lines, "nv_inference_pending_request_count", "gauge", pending, ((k, m.pending) for k, m in labelled))
    for name, text, histogram in _HISTOGRAMS:
        _header(lines, name, "histogram", text)
        for labels, m in labelled:
            _latency_histogram(lines, name, labels, histogram(m))
    _header(lines, "slipway_batch_size", "histogram", "Rows of each model execution")
    for labels, m in labelled:
        _batch_histogram(lines, labels, m)
    _machine(lines, hardware)
    return ("\n".join(lines) + "\n").encode()


def _machine(lines: list[str], hardware: Hardware) -> None:
    for name, kind, text, value in _GPU_GAUGES:
        samples = [({"gpu_uuid": gpu.uuid}, value(gpu)) for gpu in hardware.gpus()]
        _family(lines, name, kind, text, [(labels, read) for labels, read in samples if read is not None])
    total, used = hardware.memory()
    process = hardware.process()
    for name, kind, text, number in (
        ("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", hardware.cpu_utilization()),
        ("nv_cpu_memory_total_bytes", "gauge", "CPU total memory (RAM), in bytes", total),
        ("nv_cpu_memory_used_bytes", "gauge", "CPU used memory (RAM), in bytes", used),
        ("slipway_process_cpu_seconds", "counter", "CPU time of the server and its children", process["cpu_seconds"]),
        ("slipway_process_resident_bytes", "gauge", "Memory of the server and its children", process["rss_bytes"]),
    ):
        _family(lines, name, kind, text, [({}, number)])


def _latency_histogram(lines: list[str], name: str, labels: Mapping[str, str], histogram: Histogram) -> None:
    """The fine buckets merged into the exported ones: fine bucket i belongs to the first bound not below its own."""
    merged = [0] * (len(LATENCY_BOUNDS_US) + 1)
    for index, count in histogram.counts.items():
        merged[_coarse(BOUNDS_US[index])] += count
    bounds = [bound / 1e6 for bound in LATENCY_BOUNDS_US]
    _histogram(lines, name, labels, bounds, merged, histogram.sum_ns / 1e9)


def _coarse(bound_us: int) -> int:
    """Index into LATENCY_BOUNDS_US of the first power of two that is at least `bound_us`; its length where none is."""
    return min(max((bound_us - 1).bit_length() - 6, 0), len(LATENCY_BOUNDS_US))


def _batch_histogram(lines: list[str], labels: Mapping[str, str], model: ModelStatistics) -> None:
    merged = [0] * (len(BATCH_BOUNDS) + 1)
    rows = 0
    for size, batch in model.batches.items():
        merged[min(max(size - 1, 0).bit_length(), len(BATCH_BOUNDS))] += batch.count
        rows += size * batch.count
    _histogram(lines, "slipway_batch_size", labels, BATCH_BOUNDS, merged, rows)


def _histogram(
    lines: list[str],
    name: str,
    labels: Mapping[str, str],
    bounds: Iterable[int | float],
    counts: list[int],
    total: int | float,
) -> None:
    cumulative = list(accumulate(counts))
    for bound, count in zip([*(f"{bound:.12g}" for bound in bounds), "+Inf"], cumulative, strict=True):
        lines.append(_sample(f"{name}_bucket", {**labels, "le": bound}, count))
    lines.append(_sample(f"{name}_sum", labels, total))
    lines.append(_sample(f"{name}_count", labels, cumulative[-1]))


def _family(
    lines: list[str], name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], int | float]]
) -> None:
    _header(lines, name, kind, text)
    lines.extend(_sample(name, labels, value) for labels, value in samples)


def _header(lines: list[str], name: str, kind: str, text: str) -> None:
    lines.append(f"# HELP {name} {text}")
    lines.append(f"# TYPE {name} {kind}")


def _sample(name: str, labels: Mapping[str, str], value: int | float) -> str:
    if not labels:
        return f"{name} {value}"
    inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

"""The current values of TorchServe's metrics, by family.

Source: docs/metrics.md of TorchServe 0.12.
"""

import asyncio
import re
import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from serving.frontends.metrics.hardware import Gpu, Hardware, SampledHardware
from serving.torchserve.registry.source import TorchServeSource
from serving.torchserve.registry.version_names import label
from serving.torchserve.telemetry.metric_families import Family, read_families
from serving.torchserve.telemetry.metrics import InferenceMetrics, ModelSeries

_MEGABYTE, _GIGABYTE = 1 << 20, 1 << 30
_FAMILY_LINE = re.compile(r"^# HELP ", re.MULTILINE)


class _Sample(NamedTuple):
    """labels: the values of the family's dimensions, in order."""

    labels: tuple[str, ...]
    value: float


class MetricValues:
    """Reads the values on demand."""

    def __init__(self, source: TorchServeSource, metrics: InferenceMetrics) -> None:
        """Raises INVALID_ARG if metrics.yaml cannot be read."""
        self.families = read_families(source.options.metrics_config)
        self.host = socket.gethostname()
        self._source = source
        self._metrics = metrics
        self._hardware = SampledHardware(Hardware(), interval_s=2.0)
        self._samples: dict[str, Callable[[], Iterable[_Sample]]] = {
            **{f"Requests{hundred}XX": self._replies(hundred) for hundred in (2, 4, 5)},
            "ts_inference_requests_total": self._by_model(lambda one: one.requests),
            "ts_inference_latency_microseconds": self._by_model(lambda one: one.latency_ns / 1000),
            "ts_queue_latency_microseconds": self._by_model(lambda one: one.queue_ns / 1000),
            "QueueTime": self._of_host(lambda: metrics.last_queue_ns // 1_000_000),
            "WorkerThreadTime": self._of_host(lambda: metrics.last_overhead_ns // 1_000_000),
            "WorkerLoadTime": self._load_times,
            "HandlerTime": self._handler_times,
            "PredictionTime": self._handler_times,
        }
        system = {} if source.options.disable_system_metrics else self._system()
        self.system = frozenset(system)  # families of the machine, measured on demand
        self._samples |= system

    def answered(self) -> Counter[str]:
        """Return how many predictions each model has answered."""
        found: Counter[str] = Counter()
        for one in self._metrics.all_series():
            found[one.model] += one.requests
        return found

    async def refreshed(self) -> None:
        """Wait until the machine has been measured again, or until that takes too long."""
        await asyncio.gather(self._hardware.refreshed(), self._source.server.refresh_memory())

    def samples(self, family: Family) -> Iterator[tuple[list[tuple[str, str]], float]]:
        """Yield the series of a family: the labels of each, in order, and its value."""
        read = self._samples.get(family.name)
        dimensions = family.dimensions
        if family in self.families.model and "Hostname" not in dimensions:
            dimensions = (*dimensions, "Hostname")  # metrics of models have this label too
        for sample in read() if read is not None else ():
            yield list(zip(dimensions, sample.labels, strict=False)), float(sample.value)

    def custom(self) -> Iterator[tuple[str, str]]:
        """Yield the families of handlers as Prometheus text: the families in metrics.yaml or, with auto-detection, all."""
        known = {family.name for family in self.families.model}
        for name, lines in _by_family(self._source.server.custom_metrics()):
            if name in known or self._source.options.model_metrics_auto_detect:
                yield name, lines

    # -- values ----------------------------------------------------------------------------------------------------
    def _of_host(self, read: Callable[[], float]) -> Callable[[], Iterable[_Sample]]:
        return lambda: [_Sample(("Host", self.host), read())]

    def _replies(self, hundred: int) -> Callable[[], Iterable[_Sample]]:
        def samples() -> list[_Sample]:
            count = self._metrics.replies[hundred]
            return [_Sample(("Host", self.host), count)] if count else []

        return samples

    def _by_model(self, read: Callable[[ModelSeries], float]) -> Callable[[], Iterable[_Sample]]:
        return lambda: [_Sample((one.model, one.version, self.host), read(one)) for one in self._metrics.all_series()]

    def _handler_times(self) -> list[_Sample]:
        latest = {one.model: one.handler_ns / 1e6 for one in self._metrics.all_series()}
        return [_Sample((model, "Model", self.host), round(took, 2)) for model, took in latest.items()]

    def _load_times(self) -> Iterator[_Sample]:
        server = self._source.server
        for one in server.statistics():
            if one.load_s is not None and one.model_version in server.ready_versions(one.model_name):
                worker = f"W-{one.model_name}_{label(server, one.model_name, one.model_version)}"
                yield _Sample((worker, "Host", self.host), round(one.load_s * 1000))

    def _system(self) -> dict[str, Callable[[], Iterable[_Sample]]]:
        host = self._hardware.host
        disk = self._source.options.model_store or Path("/")
        return {
            "CPUUtilization": self._of_host(lambda: round(host().cpu_utilization * 100, 1)),
            "MemoryUsed": self._of_host(lambda: host().memory_used / _MEGABYTE),
            "MemoryAvailable": self._of_host(lambda: (host().memory_total - host().memory_used) / _MEGABYTE),
            "MemoryUtilization": self._of_host(lambda: round(host().memory_used / host().memory_total * 100, 1)),
            "DiskUsage": self._of_host(lambda: shutil.disk_usage(disk).used / _GIGABYTE),
            "DiskAvailable": self._of_host(lambda: shutil.disk_usage(disk).free / _GIGABYTE),
            "DiskUtilization": self._of_host(lambda: _used_part(disk)),
            "GPUUtilization": self._of_gpus(lambda gpu: _percent(gpu.utilization, 1)),
            "GPUMemoryUsed": self._of_gpus(
                lambda gpu: None if gpu.memory_used is None else gpu.memory_used / _MEGABYTE
            ),
            "GPUMemoryUtilization": self._of_gpus(lambda gpu: _percent(gpu.memory_used, gpu.memory_total)),
        }

    def _of_gpus(self, read: Callable[[Gpu], float | None]) -> Callable[[], Iterable[_Sample]]:
        def samples() -> Iterator[_Sample]:
            for number, gpu in enumerate(self._hardware.gpus()):
                value = read(gpu)
                if value is not None:
                    yield _Sample(("Host", str(number), self.host), value)

        return samples


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(part / whole * 100, 1)


def _used_part(path: Path) -> float:
    usage = shutil.disk_usage(path)
    return round(usage.used / (usage.used + usage.free) * 100, 1)  # computed as in df


def _by_family(text: str) -> Iterator[tuple[str, str]]:
    """Yield each family on a page of Prometheus text, with its lines."""
    starts = [match.start() for match in _FAMILY_LINE.finditer(text)]
    for start, stop in pairwise([*starts, len(text)]):
        lines = text[start:stop]
        yield lines.split(" ", 3)[2], lines

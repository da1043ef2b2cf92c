"""GET /metrics on TorchServe's metrics address: its families as Prometheus text, and those that handlers show.

Which there are, and the names of their labels, metrics.yaml may say. In the mode "log" the page is empty, as TorchServe's.
Source: docs/metrics_api.md of TorchServe 0.12; Prometheus, exposition formats, text 0.0.4.
"""

import asyncio
import re
import shutil
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.metrics.hardware import Gpu, Hardware, SampledHardware
from serving.frontends.metrics.prometheus import CONTENT_TYPE
from serving.frontends.torchserve.metric_families import Family, read_families
from serving.frontends.torchserve.metrics import InferenceMetrics, ModelSeries
from serving.torchserve.errors import bad_request
from serving.torchserve.side import TorchServeSide
from serving.torchserve.version_names import label

# Beside log: those of 0.7.1 and before are on the page in the mode "legacy".
LEGACY = frozenset(
    ("ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds")
)
MAX_QUERY_FIELDS = 1000
_MEGABYTE, _GIGABYTE = 1 << 20, 1 << 30
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_FAMILY_LINE = re.compile(r"^# HELP ", re.MULTILINE)


class _Sample(NamedTuple):
    """labels: the values of the family's dimensions, in order."""

    labels: tuple[str, ...]
    value: float


class MetricsPage:
    """What the route of the metrics API serves."""

    def __init__(self, side: TorchServeSide, metrics: InferenceMetrics) -> None:
        """INVALID_ARG for a metrics.yaml that cannot be read."""
        self._side = side
        self._metrics = metrics
        self._families = read_families(side.options.metrics_config)
        self._hardware = SampledHardware(Hardware(), interval_s=2.0)
        self._host = socket.gethostname()
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
        if not side.options.disable_system_metrics:
            self._samples |= self._system()

    async def show(self, exchange: Exchange) -> Reply:
        """Answer with the families that the query names by name[], or with all."""
        text = ""
        if self._side.options.metrics_mode != "log":
            await asyncio.gather(self._hardware.refreshed(), self._side.server.refresh_memory())
            text = "".join(self.render(_named(exchange.head.query)))
        return Reply(200, (text.encode(),), CONTENT_TYPE)

    def render(self, names: Collection[str] = ()) -> Iterator[str]:
        """Return the lines of the families of these names, of all without names."""
        legacy = self._side.options.metrics_mode == "legacy"
        custom = {} if legacy else dict(_by_family(self._side.server.custom_metrics()))
        for family in (*self._families.own, *self._families.model):
            shown = not names or family.name in names
            if shown and (not legacy or family.name in LEGACY) and family.name not in custom:
                yield from self._family(family)
        known = {family.name for family in self._families.model}
        for name, lines in custom.items():
            if (not names or name in names) and (name in known or self._side.options.model_metrics_auto_detect):
                yield lines

    def _family(self, family: Family) -> Iterator[str]:
        if not _NAME.fullmatch(family.name):
            return
        unit = family.unit.replace("\\", r"\\").replace("\n", " ")
        yield f"# HELP {family.name} Torchserve prometheus {family.type} metric with unit: {unit}\n"
        yield f"# TYPE {family.name} {family.type}\n"
        samples = self._samples.get(family.name)
        dimensions = family.dimensions
        if family in self._families.model and "Hostname" not in dimensions:
            dimensions = (*dimensions, "Hostname")  # added for the metrics of models
        for sample in samples() if samples is not None else ():
            pairs = zip(dimensions, sample.labels, strict=False)
            labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
            yield f"{family.name}{{{labels}}} {float(sample.value)!r}\n"

    # -- values ----------------------------------------------------------------------------------------------------
    def _of_host(self, read: Callable[[], float]) -> Callable[[], Iterable[_Sample]]:
        return lambda: [_Sample(("Host", self._host), read())]

    def _replies(self, hundred: int) -> Callable[[], Iterable[_Sample]]:
        def samples() -> list[_Sample]:
            count = self._metrics.replies[hundred]
            return [_Sample(("Host", self._host), count)] if count else []

        return samples

    def _by_model(self, read: Callable[[ModelSeries], float]) -> Callable[[], Iterable[_Sample]]:
        return lambda: [_Sample((one.model, one.version, self._host), read(one)) for one in self._metrics.all_series()]

    def _handler_times(self) -> list[_Sample]:
        latest = {one.model: one.handler_ns / 1e6 for one in self._metrics.all_series()}
        return [_Sample((model, "Model", self._host), round(took, 2)) for model, took in latest.items()]

    def _load_times(self) -> Iterator[_Sample]:
        server = self._side.server
        for one in server.statistics():
            if one.load_s is not None and one.model_version in server.ready_versions(one.model_name):
                worker = f"W-{one.model_name}_{label(server, one.model_name, one.model_version)}"
                yield _Sample((worker, "Host", self._host), round(one.load_s * 1000))

    def _system(self) -> dict[str, Callable[[], Iterable[_Sample]]]:
        host = self._hardware.host
        disk = self._side.options.model_store or Path("/")
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
                    yield _Sample(("Host", str(number), self._host), value)

        return samples


def _percent(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else round(part / whole * 100, 1)


def _used_part(path: Path) -> float:
    usage = shutil.disk_usage(path)
    return round(usage.used / usage.total * 100, 1)


def _named(query: str) -> set[str]:
    """Return the values of name[] in a query."""
    try:
        return {value for key, value in parse_qsl(query, max_num_fields=MAX_QUERY_FIELDS) if key == "name[]"}
    except ValueError:
        raise bad_request(f"expected at most {MAX_QUERY_FIELDS} names") from None


def _by_family(text: str) -> Iterator[tuple[str, str]]:
    """Return each family of a page of Prometheus text with its lines."""
    starts = [match.start() for match in _FAMILY_LINE.finditer(text)]
    for start, stop in pairwise([*starts, len(text)]):
        lines = text[start:stop]
        yield lines.split(" ", 3)[2], lines


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

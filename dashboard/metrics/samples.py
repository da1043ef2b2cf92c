"""The stored form of metrics history: rows that merge by addition, and the time for which each resolution is kept.

Percentiles are computed when a chart is read.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict, cast

import orjson

from dashboard.metrics.usage import Packed, Usage, combine_packed, unpack
from dashboard.servers.messages import Gpu

# Length of a span in seconds -> seconds for which its rows are kept. Minutes are kept for a week and a day, so that an hour of
# today can be compared with the same hour a week ago. Hours make a chart of 30 days quick. docs/performance.md has the size.
RESOLUTIONS = {1: 15 * 60, 10: 6 * 3600, 60: 8 * 24 * 3600, 600: 30 * 24 * 3600, 3600: 30 * 24 * 3600}
# The finest is what the advice reads; the fine one, which is kept for hours, is what lists, alerts and objectives read.
# Rows of up to FINE seconds have instances, so those are kept for 6 hours.
FINEST, FINE, *_ = sorted(RESOLUTIONS)
# The figures that only the advice reads, from single seconds. No chart shows them, and they are three quarters of a row.
_ONLY_IN_SECONDS = frozenset({"queue", "compute", "gaps", "batch_ns"})


class ProcessGauges(TypedDict):
    """The resources of the server's process in a span: resident bytes, CPU cores, threads, GPUs."""

    rss: int
    cpu: float
    threads: float  # the mean number, if the span is longer than a second
    gpus: list[Gpu]


@dataclass(frozen=True, slots=True)
class Sample:
    """The content of one row of the history. process: the gauges of the server's process if the row is of a whole server.
    instances: the work of each instance of a version that has several, by label; only in rows of up to FINE.
    """

    packed: Packed
    process: ProcessGauges | None = None
    instances: dict[str, Packed] = field(default_factory=dict)

    @property
    def usage(self) -> Usage:
        return unpack(self.packed)

    @property
    def requests(self) -> int:
        return self._count("success") + self._count("fail")

    @property
    def pending(self) -> int:
        return self._count("pending")

    def _count(self, name: str) -> int:
        return cast(int, self.packed.get(name, 0))


class _Stored(TypedDict):
    process: NotRequired[ProcessGauges]  # in addition to the items of Packed
    instances: NotRequired[dict[str, Packed]]


def encode(sample: Sample) -> bytes:
    """Return a sample as deflated JSON, for MetricSample.data. A busy second takes some 400 bytes."""
    process: _Stored = {} if sample.process is None else {"process": sample.process}
    instances: _Stored = {"instances": sample.instances} if sample.instances else {}
    return zlib.compress(orjson.dumps({**sample.packed, **process, **instances}), 1)


def decode(data: bytes | memoryview) -> Sample:
    """Return the sample of MetricSample.data, which PostgreSQL's driver returns as a memoryview."""
    values = orjson.loads(zlib.decompress(data))
    process = values.pop("process", None)
    return Sample(values, process, values.pop("instances", {}))


def merge_samples(samples: Iterable[Sample], *, instances: bool = False) -> Sample:
    """Return the sample of a longer span from samples of its parts: rows of one version or server, in order of time.

    The longer span has no histograms that only single seconds need. instances: whether it has the work of instances.
    """
    parts = list(samples)
    apart: dict[str, list[Packed]] = defaultdict(list)
    for label, packed in (one for part in parts for one in part.instances.items()) if instances else ():
        apart[label].append(packed)
    processes = [part.process for part in parts if part.process is not None]
    whole = combine_packed((part.packed for part in parts), without=_ONLY_IN_SECONDS)
    of_each = {label: combine_packed(several) for label, several in apart.items()}
    return Sample(whole, merge_processes(processes) if processes else None, of_each)


def merge_processes(processes: list[ProcessGauges]) -> ProcessGauges:
    """Return the gauges of a longer span: means, the highest resident memory, and the last state of the GPUs."""
    count = len(processes)
    return {
        "cpu": sum(one["cpu"] for one in processes) / count,
        "threads": sum(one["threads"] for one in processes) / count,
        "rss": max(one["rss"] for one in processes),
        "gpus": processes[-1]["gpus"],
    }

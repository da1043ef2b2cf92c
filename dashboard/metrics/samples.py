"""Metrics history as it is stored: rows of spans that merge by addition. Percentiles are computed when somebody looks."""

import zlib
from collections.abc import Iterable
from typing import Any

import orjson

from dashboard.metrics.usage import Usage, combine, unpack

# Length of a span in seconds -> how long its rows are kept.
RESOLUTIONS = {1: 15 * 60, 10: 24 * 3600, 300: 30 * 24 * 3600}
FINEST = min(RESOLUTIONS)
_MEANS = ("cpu", "threads")


def encode(packed: dict[str, Any]) -> bytes:
    """JSON, deflated: a busy second takes some 400 bytes."""
    return zlib.compress(orjson.dumps(packed), 1)


def decode(data: bytes | memoryview) -> dict[str, Any]:
    """`data`: as a database hands a BinaryField over; PostgreSQL's driver gives a memoryview."""
    found: dict[str, Any] = orjson.loads(zlib.decompress(data))
    return found


def merge_packed(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Rows of one version, or of the server, one after another in time."""
    usages: list[Usage] = []
    processes: list[dict[str, Any]] = []
    for row in rows:
        process = row.pop("process", None)
        if process is not None:
            processes.append(process)
        usages.append(unpack(row))
    merged = combine(usages).pack()
    return merged | {"process": merge_processes(processes)} if processes else merged


def merge_processes(processes: list[dict[str, Any]]) -> dict[str, Any]:
    """Gauges of the process: the mean, and the highest resident memory; GPUs as they were last."""
    means = {name: sum(one[name] for one in processes) / len(processes) for name in _MEANS}
    return means | {"rss": max(one["rss"] for one in processes), "gpus": processes[-1]["gpus"]}

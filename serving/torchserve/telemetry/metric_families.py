"""The metric families: TorchServe's own families, or the families in a metrics.yaml instead.

Source: docs/metrics.md of TorchServe 0.12.
"""

from pathlib import Path
from typing import NamedTuple

import yaml

from serving.core.errors import ServingError, invalid

TYPES = ("counter", "gauge", "histogram")
MAX_FILE = 1 << 20  # bytes
MAX_FAMILIES = 1000


class Family(NamedTuple):
    """dimensions: the names of the family's labels, in order."""

    name: str
    type: str
    unit: str
    dimensions: tuple[str, ...]


class Families(NamedTuple):
    """own: the families of the server. model: the families of handlers. Other families of handlers are shown only with
    auto-detection."""

    own: tuple[Family, ...]
    model: tuple[Family, ...]


_HOST = ("Level", "Hostname")
_GPU = ("Level", "DeviceId", "Hostname")
_PREDICTIONS = ("model_name", "model_version", "hostname")
DEFAULTS = Families(
    (
        *(Family(f"Requests{hundred}XX", "counter", "Count", _HOST) for hundred in (2, 4, 5)),
        Family("ts_inference_requests_total", "counter", "Count", _PREDICTIONS),
        Family("ts_inference_latency_microseconds", "counter", "Microseconds", _PREDICTIONS),
        Family("ts_queue_latency_microseconds", "counter", "Microseconds", _PREDICTIONS),
        Family("QueueTime", "gauge", "Milliseconds", _HOST),
        Family("WorkerThreadTime", "gauge", "Milliseconds", _HOST),
        Family("WorkerLoadTime", "gauge", "Milliseconds", ("WorkerName", *_HOST)),
        Family("CPUUtilization", "gauge", "Percent", _HOST),
        *(Family(f"Memory{what}", "gauge", "Megabytes", _HOST) for what in ("Used", "Available")),
        Family("MemoryUtilization", "gauge", "Percent", _HOST),
        *(Family(f"Disk{what}", "gauge", "Gigabytes", _HOST) for what in ("Usage", "Available")),
        Family("DiskUtilization", "gauge", "Percent", _HOST),
        Family("GPUMemoryUtilization", "gauge", "Percent", _GPU),
        Family("GPUMemoryUsed", "gauge", "Megabytes", _GPU),
        Family("GPUUtilization", "gauge", "Percent", _GPU),
    ),
    tuple(Family(name, "gauge", "ms", ("ModelName", "Level")) for name in ("HandlerTime", "PredictionTime")),
)


def read_families(path: Path | None) -> Families:
    """Return the families in a metrics.yaml, or TorchServe's own without one. Raises INVALID_ARG if the file cannot be read."""
    if path is None:
        return DEFAULTS
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE + 1)
        if len(text) > MAX_FILE:
            raise _wrong(path, f"it has more than {MAX_FILE} bytes")
        content = yaml.safe_load(text)
    except OSError as error:
        raise _wrong(path, str(error.strerror)) from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise _wrong(path, "it is not YAML") from None
    if not isinstance(content, dict):
        raise _wrong(path, "expected an object with ts_metrics and model_metrics")
    return Families(*(_families(path, name, content.get(name)) for name in ("ts_metrics", "model_metrics")))


def _families(path: Path, section: str, content: object) -> tuple[Family, ...]:
    if content is None:
        return ()
    if not isinstance(content, dict) or not set(content) <= set(TYPES):
        raise _wrong(path, f"{section} must have lists by type: {', '.join(TYPES)}")
    rows = [(kind, row) for kind, listed in content.items() for row in _listed(path, section, listed)]
    if len(rows) > MAX_FAMILIES:
        raise _wrong(path, f"{section} has more than {MAX_FAMILIES} metrics")
    return tuple(_family(path, section, kind, row) for kind, row in rows)


def _listed(path: Path, section: str, listed: object) -> list[object]:
    if listed is None:
        return []
    if not isinstance(listed, list):
        raise _wrong(path, f"{section} must have lists of metrics")
    return listed


def _family(path: Path, section: str, kind: str, row: object) -> Family:
    if not isinstance(row, dict) or not isinstance(row.get("name"), str) or not row["name"].isascii():
        raise _wrong(path, f"each metric of {section} needs a name")
    dimensions = row.get("dimensions") or []
    if not isinstance(dimensions, list) or not all(isinstance(one, str) for one in dimensions):
        raise _wrong(path, f"the dimensions of '{row['name'][:100]}' must be a list of names")
    return Family(row["name"], kind, str(row.get("unit", "")), tuple(dimensions))


def _wrong(path: Path, what: str) -> ServingError:
    return invalid(f"metrics_config: cannot use '{path.name}': {what}")

"""The memory of every device, divided among the versions that hold it, and what the versions that are not in memory need.

A version in processes of its own holds what these processes hold, which is measured. A version in the server's process holds
an estimate: the growth of the server's memory during its load, or the size of its files if that is larger. Loads that overlap
get shares of their growth by the size of their files. If estimates exceed what was measured for the server's process, they are
cut in proportion. The rest of the server is its own.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from repository.config.residency import PINNED
from serving.core.devices import Device
from serving.models.model import Model
from serving.models.model_lifecycle import ModelLifecycle
from serving.models.model_version import ModelVersion, State
from serving.models.residency import ResidencyManager, may_sleep
from serving.resources.memory import FILES, GROWTH, MEASURED, MemoryUse
from serving.resources.process_memory import HOST, Reading

JsonObject = dict[str, object]


@dataclass(slots=True)
class Part:
    """The bytes that instances of a version hold on a device. basis: MEASURED, GROWTH or FILES."""

    device: str
    size: int
    basis: str
    instances: list[str]

    def as_json(self) -> JsonObject:
        return {"device": self.device, "bytes": self.size, "basis": self.basis, "instances": self.instances}


class VersionMemory(NamedTuple):
    """A version with its parts. kept_by: why the server may not free it now to make room, "" if it may."""

    lifecycle: ModelLifecycle
    number: int
    version: ModelVersion
    parts: list[Part]
    kept_by: str

    def as_json(self) -> JsonObject:
        version, needs = self.version, None
        if not self.parts and (known := version.memory_loaded or version.memory_awake) is not None:
            needs = {"host_bytes": known.host, "gpu_bytes": dict(known.gpus)}
        identifier = self.lifecycle.identifier
        return {
            "name": identifier.name,
            "namespace": identifier.namespace,
            "version": str(self.number),
            "state": version.state.value,
            "asleep": version.asleep,
            "mode": version.residency.mode,
            "kept_by": self.kept_by,
            "last_inference_ms": version.statistics.last_inference_ms,
            "parts": [part.as_json() for part in self.parts],
            "needs": needs,
        }


def memory_map(
    lifecycles: Iterable[ModelLifecycle], residency: ResidencyManager, reading: Reading, base: int = 0
) -> JsonObject:
    """Return the map as JSON: {"devices", "models"}. It is made on the event loop's thread, from a reading made before.

    base: the bytes that the server held on the host before any load, which no estimate gets.
    """
    rows = [
        _of_version(lifecycle, number, version, reading)
        for lifecycle in lifecycles
        for number, version in sorted(lifecycle.versions.items())
    ]
    devices = [_of_device(name, rows, residency, reading, base if name == HOST else 0) for name in reading.devices]
    return {"devices": devices, "models": [row.as_json() for row in rows]}


def _of_device(
    name: str, rows: list[VersionMemory], residency: ResidencyManager, reading: Reading, base: int
) -> JsonObject:
    """Cut the estimates on a device to what was measured, and return the device's figures in bytes.

    server: what this server's processes hold, models included; measured: whether it was measured, or is the sum of estimates.
    """
    memory, processes = reading.devices[name]
    parts = [part for row in rows for part in row.parts if part.device == name]
    exact = sum(part.size for part in parts if part.basis == MEASURED)
    estimates = [part for part in parts if part.basis != MEASURED]
    estimated = sum(part.size for part in estimates)
    used = max(0, memory.total - memory.size)
    server = min(used, exact + estimated) if processes is None else sum(processes.values())
    if estimated > (left := max(0, server - exact - base)):
        for part in estimates:
            part.size = part.size * left // estimated
    held: dict[bool, int] = defaultdict(int)
    for row in rows:
        held[row.kept_by == ""] += _on(row.version.held, name)
    return {
        "device": name,
        "where": memory.where,
        "total": memory.total,
        "available": memory.size,
        "server": server,
        "measured": processes is not None,
        "budget": residency.budget(name),
        "budget_kept": held[False],
        "budget_evictable": held[True],
    }


def _on(memory: MemoryUse, device: str) -> int:
    return memory.host if device == HOST else dict(memory.gpus).get(int(device.removeprefix("gpu:")), 0)


def _of_version(lifecycle: ModelLifecycle, number: int, version: ModelVersion, reading: Reading) -> VersionMemory:
    resident = [*version.models, version.incoming]
    parts = [part for model in resident if isinstance(model, Model) for part in _parts(model, reading)]
    return VersionMemory(lifecycle, number, version, parts, _kept_by(lifecycle, version) if parts else "")


def _kept_by(lifecycle: ModelLifecycle, version: ModelVersion) -> str:
    if lifecycle.lock.locked() or version.state is not State.READY:
        return "loading"
    if may_sleep(lifecycle, version, time.monotonic()):
        return ""
    return PINNED if version.residency.mode == PINNED else "requests"


def _parts(model: Model, reading: Reading) -> Iterator[Part]:
    """Yield what a loaded model holds: one part for each instance with processes, and one for the others on each device."""
    together: dict[str, list[str]] = defaultdict(list)  # device -> instances that share the weights there
    in_processes: dict[str, int] = defaultdict(int)  # device -> instances with processes
    grown = model.grown
    for instance in model.instances:
        if instance.processes():
            in_processes[_name(instance.device)] += 1
    for instance in model.instances:
        device, processes = _name(instance.device), instance.processes()
        if not processes:
            together[device].append(instance.name)
            continue
        yield Part(HOST, reading.of(HOST, processes) or 0, MEASURED, [instance.name])
        if device != HOST:
            measured = reading.of(device, processes)
            share = _on(grown, device) // in_processes[device]
            size, basis = (share, GROWTH) if measured is None else (measured, MEASURED)
            yield Part(device, size, basis, [instance.name])
    if together:
        files = model.memory
        for device in dict.fromkeys((HOST, *together)):
            least, growth = _on(files, device), _on(grown, device)
            if size := max(least, growth):
                names = together.get(device) or [name for names in together.values() for name in names]
                yield Part(device, size, GROWTH if growth > least else FILES, names)


def _name(device: Device) -> str:
    return str(device) if device.kind == "gpu" else HOST

"""Measures the memory of each model on the host and on each GPU, in two figures.

`memory` is the published figure, which is the same for every load of a model. For a model in the server's process, `memory` is
the size of the model's files on each device that has instances. For a model in child processes, `memory` is the memory of those
processes. Child processes are read off the loop, at most once a second unless a caller waits.

`held` is the figure for memory budgets: the larger of `memory` and, if the load ran alone, the growth of the server's memory.
`held` differs between loads, because the first model of a framework also prepares its libraries, and later loads reuse freed
pages.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from serving.core.devices import Device, gpu_count
from serving.resources.sampling import Sample

READ_EACH_S = 1.0
MEASURED = "measured"  # the memory of the model's own processes
FILES = "files"  # the size of the model's files
GROWTH = "growth"  # the growth of the server's memory while the model was loaded


class MemoryUse(NamedTuple):
    """Sizes in bytes. gpus: pairs of a device's number and its bytes. basis: MEASURED, FILES or GROWTH."""

    host: int = 0
    gpus: tuple[tuple[int, int], ...] = ()
    basis: str = MEASURED

    def __add__(self, other: object) -> "MemoryUse":
        if not isinstance(other, MemoryUse):
            return NotImplemented
        gpus = dict(self.gpus)
        for device, size in other.gpus:
            gpus[device] = gpus.get(device, 0) + size
        basis = FILES if FILES in (self.basis, other.basis) else MEASURED
        return MemoryUse(self.host + other.host, tuple(sorted(gpus.items())), basis)


NOTHING = MemoryUse()


@dataclass(slots=True, eq=False)
class Growth:
    """The growth of this process's memory during one load, in bytes. alone: no other load ran at the same time.

    weight: the size of the weights that this load put into this process. together: the growth during all loads that overlapped,
    from when the first began; its weight is the sum of theirs.
    """

    alone: bool = True
    host: int = 0
    gpus: dict[int, int] = field(default_factory=dict)
    weight: int = 0
    together: "Growth | None" = None

    def share(self) -> MemoryUse:
        """Return the growth of this load, or its share by weight if it overlapped with others; nothing before their end."""
        whole = self if self.alone else self.together
        if whole is None or (whole is not self and not whole.weight):
            return NOTHING
        part, of = (1, 1) if whole is self else (self.weight, whole.weight)
        gpus = tuple((gpu, max(0, size * part // of)) for gpu, size in sorted(whole.gpus.items()))
        return MemoryUse(max(0, whole.host * part // of), gpus, GROWTH)


class MemoryMeter:
    """Measures the growth of memory during loads. Each server has one MemoryMeter, for the event loop's thread."""

    def __init__(self) -> None:
        self.base = resident_bytes()  # what the server held before any load
        self._open: set[Growth] = set()
        self._together = Growth()
        self._weight = 0  # of the loads that overlap now
        self._before: tuple[int, dict[int, tuple[int, int]]] = (0, {})  # what the server held when they began

    @contextmanager
    def measure(self) -> Iterator[Growth]:
        if not self._open:
            self._together, self._weight = Growth(), 0
        growth = Growth(alone=not self._open, together=self._together)
        for other in self._open:
            other.alone = False
        self._open.add(growth)
        host, gpus = resident_bytes(), _gpu_bytes()
        if len(self._open) == 1:
            self._before = host, gpus
        try:
            yield growth
        finally:
            self._open.discard(growth)
            self._weight += growth.weight
            _set_growth(growth, host, gpus)
            if not self._open:
                _set_growth(self._together, *self._before)
                self._together.weight = self._weight


def _set_growth(growth: Growth, host: int, gpus: dict[int, tuple[int, int]]) -> None:
    growth.host = resident_bytes() - host
    growth.gpus = {device: _gpu_growth(gpus[device], now) for device, now in _gpu_bytes().items()}


def weights_use(size: int, devices: Iterable[Device]) -> MemoryUse:
    """Return the memory of a model's weights in the server's process. size: the bytes of its files. devices: the devices of its
    instances; the instances on one device share the weights."""
    places = {(device.kind, device.id) for device in devices}
    gpus = sorted(number for kind, number in places if kind == "gpu")
    return MemoryUse(size if len(places) > len(gpus) else 0, tuple((number, size) for number in gpus), FILES)


def memory_growth(growth: Growth, gpus: Iterable[int]) -> MemoryUse:
    """Return the growth of the server's memory on the host and on these GPUs; nothing if several loads ran at the same time."""
    if not growth.alone:
        return NOTHING
    return MemoryUse(max(0, growth.host), tuple((gpu, max(0, growth.gpus.get(gpu, 0))) for gpu in sorted(set(gpus))))


def larger_use(one: MemoryUse, other: MemoryUse) -> MemoryUse:
    """Return the larger of both figures for each device."""
    gpus = dict(other.gpus)
    for gpu, size in one.gpus:
        gpus[gpu] = max(size, gpus.get(gpu, 0))
    return MemoryUse(max(one.host, other.host), tuple(sorted(gpus.items())), one.basis)


def resident_bytes() -> int:
    """Return the bytes of this process's heap and shared memory, without library files."""
    return private_bytes(os.getpid())


def private_bytes(pid: int) -> int:
    """Return the bytes that the end of a process frees: its heap and shared memory, without library files; 0 if it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(size.split()[0]) << 10 for size in sizes.values())


class ChildMemory:
    """The memory of models' processes at the last reading. Each server has one ChildMemory, for the event loop's thread."""

    def __init__(self) -> None:
        self._processes: set[int] = set()
        self._sample = Sample("memory of models' processes", self._read)

    def of(self, processes: Iterable[int]) -> int:
        """Return the bytes that these processes use. A new process is read immediately."""
        pids = set(processes)
        sizes = self._sample.latest
        for pid in pids - sizes.keys():
            self._processes.add(pid)
            sizes[pid] = private_bytes(pid)
        if self._sample.age >= READ_EACH_S:
            self._sample.refresh()
        return sum(sizes[pid] for pid in pids)

    async def refreshed(self) -> None:
        """Read all processes again, and wait until the reading is complete or takes too long."""
        await self._sample.refreshed()

    def _read(self) -> dict[int, int]:
        """Read the sizes again, on a separate thread, and forget processes that have ended."""
        sizes = {pid: size for pid in list(self._processes) if (size := private_bytes(pid))}
        self._processes &= sizes.keys()
        return sizes


def files_bytes(folder: Path) -> int:
    """Return the total size of all files below a version's folder, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # the file was deleted after it was found
            continue
    return total


def _gpu_bytes() -> dict[int, tuple[int, int]]:
    """Return for each GPU the bytes that torch uses in this process, and the driver's figure of used bytes."""
    return {device: (_torch_bytes(device), _driver_bytes(device)) for device in range(gpu_count())}


def _gpu_growth(before: tuple[int, int], now: tuple[int, int]) -> int:
    """Return the growth of a GPU's memory in bytes: torch's own figure, which is exact, or else the driver's figure."""
    return now[0] - before[0] or now[1] - before[1]


def _torch_bytes(device: int) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_allocated(device))


def _driver_bytes(device: int) -> int:
    import pynvml

    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(device)).used)
    except pynvml.NVMLError:
        return 0

"""What each model holds, on the host and on each GPU: measured around its load, and in its child processes.

A load that runs alone is measured by what the server's memory grew by. Pages that were freed before may be used again, and
loads that overlap cannot be told apart: then the size of the model's files is the floor, and `basis` says so.
Processes of a model's own are read off the loop, at most once a second unless somebody waits for it.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from serving.core.devices import gpu_count
from serving.resources.sampling import Sample

_PAGE = os.sysconf("SC_PAGE_SIZE")
MEASURED = "measured"  # memory of its own processes, or grown while nothing else loaded
READ_EACH_S = 1.0
FILES = "files"  # the size of its files: a floor


class MemoryUse(NamedTuple):
    """Bytes. `gpus`: device number -> bytes. The basis is that of `host`."""

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
    """How much more memory this process holds at the end of one load than at its beginning, in bytes."""

    alone: bool = True
    host: int = 0
    gpus: dict[int, int] = field(default_factory=dict)


class MemoryMeter:
    """One for each server; used on the event loop's thread."""

    def __init__(self) -> None:
        self._open: set[Growth] = set()

    @contextmanager
    def measure(self) -> Iterator[Growth]:
        growth = Growth(alone=not self._open)
        for other in self._open:
            other.alone = False
        self._open.add(growth)
        host, gpus = resident_bytes(), _gpu_bytes()
        try:
            yield growth
        finally:
            self._open.discard(growth)
            growth.host = resident_bytes() - host
            growth.gpus = {device: _gpu_growth(gpus[device], now) for device, now in _gpu_bytes().items()}


def memory_use(growth: Growth, floor: int, processes: Iterable[int], devices: Iterable[int]) -> MemoryUse:
    """Return what a model holds.

    floor: bytes of its files; processes: those of its own; devices: the GPUs that it was placed on.
    """
    gpus = (
        tuple((device, max(0, growth.gpus.get(device, 0))) for device in sorted(set(devices))) if growth.alone else ()
    )
    pids = list(processes)
    if pids:
        return MemoryUse(sum(map(private_bytes, pids)), gpus)
    if growth.alone and growth.host >= floor:
        return MemoryUse(growth.host, gpus)
    return MemoryUse(floor, gpus, FILES)


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE


def private_bytes(pid: int) -> int:
    """Return the bytes that a process holds and that end with it: heap and shared memory, no library files; 0 once it ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    sizes = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(size.split()[0]) << 10 for size in sizes.values())


class ChildMemory:
    """What processes of models hold, as it was last read; one for each server, used on the event loop's thread."""

    def __init__(self) -> None:
        self._processes: set[int] = set()
        self._sample = Sample("memory of models' processes", self._read)

    def of(self, processes: Iterable[int]) -> int:
        """Return the bytes that these processes hold; a process that is new is read at once."""
        pids = set(processes)
        sizes = self._sample.latest
        for pid in pids - sizes.keys():
            self._processes.add(pid)
            sizes[pid] = private_bytes(pid)
        if self._sample.age >= READ_EACH_S:
            self._sample.refresh()
        return sum(sizes[pid] for pid in pids)

    async def refreshed(self) -> None:
        """Return when all have been read anew, or that takes too long."""
        await self._sample.refreshed()

    def _read(self) -> dict[int, int]:
        """Read the sizes anew, on a thread of its own. What has ended holds nothing, and is forgotten."""
        sizes = {pid: size for pid in list(self._processes) if (size := private_bytes(pid))}
        self._processes &= sizes.keys()
        return sizes


def files_bytes(folder: Path) -> int:
    """Return the size of all files below a version's folder, in bytes."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # deleted between the two looks
            continue
    return total


def _gpu_bytes() -> dict[int, tuple[int, int]]:
    """Return for each GPU the bytes that torch holds in this process, and that the driver says are used on the device."""
    return {device: (_torch_bytes(device), _driver_bytes(device)) for device in range(gpu_count())}


def _gpu_growth(before: tuple[int, int], now: tuple[int, int]) -> int:
    """Return by how many bytes a GPU's memory grew: torch knows its own exactly; the driver sees what others allocate."""
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

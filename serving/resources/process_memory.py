"""Reads how much memory this server's processes hold on the host and on each GPU, so that no page counts twice.

On the host a process holds its heap and shared memory. A page that several processes share is split between them (PSS). Pages
of files, such as libraries, are left out, because the kernel drops them before it refuses memory. So the figures of all
processes, and the memory that is available, do not sum up to more than there is.
Sources: Linux, Documentation/filesystems/proc.rst (smaps_rollup); NVML, nvmlDeviceGetComputeRunningProcesses.
"""

from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import psutil

from serving.core.devices import gpu_count
from serving.resources.available_memory import Available, gpu_available, host_available
from serving.resources.memory import private_bytes

_OWN = ("Pss_Anon:", "Pss_Shmem:")
_CHILDREN_LISTED = Path("/proc/thread-self/children").exists()  # CONFIG_PROC_CHILDREN
HOST = "host"
WALKED = 2 << 30  # the most bytes whose pages one reading looks at


class DeviceMemory(NamedTuple):
    """The memory of one device in bytes. processes: pid -> bytes of each process of this server; None if the driver names no
    processes, as in most containers."""

    memory: Available
    processes: Mapping[int, int] | None


class Reading(NamedTuple):
    """devices: by "host" and "gpu:<number>". parents: pid -> parent of each process of this server, whose own is missing."""

    devices: dict[str, DeviceMemory]
    parents: dict[int, int]

    def of(self, device: str, pids: Iterable[int]) -> int | None:
        """Return the bytes of these processes and of their descendants; None if the device does not tell."""
        sizes = self.devices[device].processes if device in self.devices else None
        if sizes is None:
            return None
        chosen = set(pids)
        return sum(size for pid, size in sizes.items() if chosen & self._line(pid))

    def _line(self, pid: int) -> set[int]:
        """Return a process with all its ancestors within this server."""
        line = {pid}
        while (pid := self.parents.get(pid, 0)) and pid not in line:
            line.add(pid)
        return line


def read_memory() -> Reading:
    """Return the memory now. It may take a quarter of a second, because the kernel looks at each page of up to WALKED bytes."""
    server = psutil.Process()
    parents: dict[int, int] = {}
    for child in descendants(server):
        try:
            parents[child.pid] = child.ppid()
        except psutil.NoSuchProcess:
            continue
    pids = [server.pid, *parents]
    devices = {}
    if (host := host_available()) is not None:
        devices[HOST] = DeviceMemory(host, _own_sizes(pids))
    for number in range(gpu_count()):
        if (memory := gpu_available(number)) is not None:
            devices[f"gpu:{number}"] = DeviceMemory(memory, gpu_processes(number, pids))
    return Reading(devices, parents)


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of a process.

    They are read from the kernel's lists of children. If the kernel has none, psutil scans every process of the machine.
    """
    found: list[psutil.Process] = []
    pending = [process.pid]
    try:
        while pending:
            for path in Path(f"/proc/{pending.pop()}/task").glob("*/children"):
                pids = [int(pid) for pid in path.read_text().split()]
                pending += pids
                found += [psutil.Process(pid) for pid in pids]
    except (OSError, psutil.NoSuchProcess):
        return process.children(recursive=True)
    return found if _CHILDREN_LISTED else process.children(recursive=True)


def _own_sizes(pids: Iterable[int]) -> dict[int, int]:
    """Return the bytes of each process, split for the smallest ones together up to WALKED bytes. The largest processes, whose
    pages would take too long to look at, keep their RSS: their pages are weights, which no other process shares."""
    sizes = {pid: private_bytes(pid) for pid in pids}
    walked = 0
    for pid, size in sorted(sizes.items(), key=itemgetter(1)):
        if (walked := walked + size) > WALKED:
            break
        sizes[pid] = own_bytes(pid)
    return sizes


def own_bytes(pid: int) -> int:
    """Return the bytes of a process's heap and of its part of shared memory; 0 if it ended.

    A kernel that does not split shared pages, or hides them, gives the RSS of both, which counts shared pages in each process.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        lines = []
    sizes = [int(line.split()[1]) << 10 for line in lines if line.startswith(_OWN)]
    return sum(sizes) if sizes else private_bytes(pid)


def gpu_processes(number: int, pids: Iterable[int]) -> dict[int, int] | None:
    """Return the bytes of these processes on a GPU, or None if its driver knows none of them by the ids of this container."""
    import pynvml

    try:
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(number))
    except pynvml.NVMLError:
        return None
    wanted = set(pids)
    sizes = {one.pid: int(one.usedGpuMemory) for one in running if one.pid in wanted and one.usedGpuMemory is not None}
    return sizes or None

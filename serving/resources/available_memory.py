"""Finds the memory left for one more model: on this machine, within the limits of its control groups, and on each GPU.

The sources are Linux's MemAvailable, control groups of version 2, and a GPU's driver. A figure that cannot be
read sets no bound. Source: Linux, Documentation/filesystems/proc.rst and admin-guide/cgroup-v2.rst.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from serving.resources.memory import MemoryUse

_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
# The fields of memory.stat for pages that the kernel reclaims before it refuses memory.
_RECLAIMABLE = ("active_file", "inactive_file", "slab_reclaimable")


class Available(NamedTuple):
    """size: the bytes that are left. where: the kind of memory, as words for a message. total: all bytes of this memory."""

    size: int
    where: str
    total: int


def shortage(needed: MemoryUse) -> str:
    """Return why the memory does not suffice, with numbers and advice; "" if it suffices, or if no figure can be read."""
    found = [] if not needed.host else [(needed.host, host_available())]
    found += [(size, gpu_available(device)) for device, size in needed.gpus]
    for size, available in found:
        if available is None or size <= available.size:
            continue
        if size > available.total:
            there = f"there are {_readable(available.total)} in all {available.where}"
            return f"{_readable(size)} are needed, and {there}; make the model smaller, or serve it where there is more"
        there = f"{_readable(available.size)} are available {available.where}"
        return f"{_readable(size)} are needed, and {there}; unload another model, or make room there"
    return ""


def host_available(meminfo: Path = _MEMINFO, own_group: Path = _OWN_GROUP, groups: Path = _GROUPS) -> Available | None:
    """Return how much host memory this process may still take: the lowest of all bounds."""
    bounds = [*_of_machine(meminfo), *_of_groups(own_group, groups)]
    return min(bounds, default=None)


def gpu_available(device: int) -> Available | None:
    """Return the free memory of a GPU, or None if its driver has no figure."""
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(device))
    except pynvml.NVMLError:
        return None
    return Available(int(memory.free), f"on GPU {device}", int(memory.total))


def _of_machine(meminfo: Path) -> Iterator[Available]:
    fields = _fields(meminfo, ":")
    available = fields.get("MemAvailable")
    if available is not None:
        yield Available(available << 10, "on this machine", fields.get("MemTotal", available) << 10)


def _of_groups(own_group: Path, groups: Path) -> Iterator[Available]:
    """Yield the memory left within the limit of this process's control group, and within the limit of each parent group."""
    try:
        lines = own_group.read_text().splitlines()
    except OSError:
        return
    path = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if path is None:  # there are only control groups of version 1
        return
    folder = groups / path.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(groups):
            return
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            stat = _fields(group / "memory.stat", " ")
            left = limit - used + sum(stat.get(name, 0) for name in _RECLAIMABLE)
            yield Available(max(0, left), "within the memory limit of its container", limit)


def _fields(path: Path, separator: str) -> dict[str, int]:
    """Return the numbers by name in a file of lines "name<separator> number ..."; {} if the file cannot be read."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split(separator, 1) for line in lines if separator in line)
    return {name: int(value.split()[0]) for name, value in pairs if value.split()[:1] and value.split()[0].isdecimal()}


def _number(path: Path) -> int | None:
    """Return the number in a file, or None if the file has "max", or if there is no such file."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _readable(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.3g} {unit}" if size < 1000 << power else f"{size >> power} {unit}"
    return f"{size} bytes"

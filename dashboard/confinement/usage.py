"""What a tree of processes and a folder take at the moment, and the bound that they pass."""

import os
from pathlib import Path

import psutil

from dashboard.confinement.bounds import Bound, Limits

_EACH_FILE = 4096  # an empty one takes room as well
_LAUNCHER_PROCESSES = 1  # the first process of the namespace


def bound_passed_by_processes(pid: int, limits: Limits) -> Bound | None:
    """Return the bound that all descendants of a process pass together, if they pass one.

    The number of processes comes first: to look at each of too many takes long. Memory that processes share counts once.
    """
    try:
        tree = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return None
    if len(tree) > limits.processes + _LAUNCHER_PROCESSES:
        return Bound.PROCESSES
    if sum(map(_cpu_seconds, tree)) > limits.cpu_seconds:
        return Bound.CPU
    if sum(map(_memory, tree)) > limits.memory_bytes and sum(map(_own_memory, tree)) > limits.memory_bytes:
        return Bound.MEMORY
    return None


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))  # also of its children that have ended
    except psutil.Error:  # it has ended
        return 0


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _own_memory(process: psutil.Process) -> int:
    """Return the memory of a process with its share of what it shares."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.AccessDenied:
        return _memory(process)
    except psutil.Error:
        return 0


def bound_passed_by_files(folder: Path, limits: Limits) -> Bound | None:
    """Return Bound.FILES if the files below a folder have too many bytes, or some of them cannot be seen."""
    total, waiting = 0, [str(folder)]
    while waiting and total <= limits.file_bytes:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    total += max(_EACH_FILE, entry.stat(follow_symlinks=False).st_blocks * 512)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # it was removed meanwhile
        except OSError:  # a folder that cannot be read, or too deep a path
            return Bound.FILES
    return Bound.FILES if total > limits.file_bytes else None

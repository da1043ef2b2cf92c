"""Whether a process works, waits for a CPU or hangs, by what the kernel reports. Source: proc_pid_stat(5)."""

import os
from pathlib import Path
from typing import NamedTuple

_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Activity(NamedTuple):
    """runnable: whether the main thread runs or waits for a CPU. cpu_s: CPU seconds that the process has used. pages_read: the
    pages that it has read from a disk."""

    runnable: bool
    cpu_s: float
    pages_read: int


NONE = Activity(False, 0.0, 0)


def read_activity(pid: int) -> Activity:
    """Return the activity of a process since its start; NONE if it has ended."""
    try:
        return parse_activity(Path(f"/proc/{pid}/stat").read_bytes())
    except OSError:
        return NONE


def parse_activity(stat: bytes) -> Activity:
    """Return the activity in the text of /proc/PID/stat."""
    fields = stat.rpartition(b")")[2].split()  # the name before may contain spaces
    return Activity(fields[0] == b"R", (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS, int(fields[9]))


def not_waiting_s(before: Activity, now: Activity, elapsed_s: float) -> float:
    """Return how many of the last `elapsed_s` seconds a process did not wait for a CPU. before: its activity at their start.

    A runnable process waits whenever it uses no CPU. A process that sleeps or is stopped waits for something else.
    """
    return min(elapsed_s, now.cpu_s - before.cpu_s) if now.runnable else elapsed_s

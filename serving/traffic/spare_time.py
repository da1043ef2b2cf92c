"""Decides whether the event loop has time to spare for optional work.

On a busy loop, optional work delays the answers to clients, even if the loop is not behind yet. The loop is busy if its thread
worked, or waited for a processor, for more than the share BUSY of the time. The second and each further busy reading in a row
halves the share of optional work that is allowed. A few pieces are always allowed between two readings.
Source: Linux Documentation/scheduler/sched-stats.rst, /proc/<pid>/schedstat.
"""

import time
from random import random

BUSY = 0.75  # share of the time
_SCHEDSTAT = "/proc/thread-self/schedstat"
READING_NS = 50_000_000  # the shortest time between two readings
ALWAYS = 2  # pieces of work that are always allowed between two readings
_LEAST = 1 / 64
_GROWTH = 1.25


class SpareTime:
    """Used on the event loop's thread."""

    __slots__ = ("_at", "_given", "_share", "_used", "_was_busy")

    def __init__(self) -> None:
        self._share = 1.0
        self._given = 0  # pieces of work since the last reading
        self._was_busy = False
        self._at, self._used = time.monotonic_ns(), _busy_ns()

    def left(self) -> bool:
        """Return whether one more piece of work is allowed."""
        now = time.monotonic_ns()
        if now - self._at >= READING_NS:
            self._read(now)
        self._given += 1
        return self._share >= 1.0 or self._given <= ALWAYS or random() < self._share

    def _read(self, now: int) -> None:
        used = _busy_ns()
        busy = used - self._used > BUSY * (now - self._at)
        self._at, self._used, self._given = now, used, 0
        if busy and self._was_busy:
            self._share = max(_LEAST, self._share / 2)
        elif not busy:
            self._share = min(1.0, self._share * _GROWTH)
        self._was_busy = busy


def _busy_ns() -> int:
    """Return how long this thread has worked, including the time it waited for a processor if the system reports that."""
    try:
        with open(_SCHEDSTAT, "rb") as file:
            worked, waited, _ = file.read().split()
    except (OSError, ValueError):
        return time.thread_time_ns()
    return int(worked) + int(waited)

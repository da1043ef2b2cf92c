"""Checks every child process of a server once a second, so that a child that hangs or has ended is replaced."""

import logging
import threading
import time
from typing import Protocol

log = logging.getLogger(__name__)

INTERVAL_S = 1.0


class Watched(Protocol):
    """Supervises one child process."""

    def check(self, elapsed_s: float) -> None:
        """Check the child without waiting, every INTERVAL_S on the watch's thread. elapsed_s: time since the last call."""

    def break_off(self, model: str, reason: str) -> None:
        """End the child if this is its first load of the model. Callable on any thread. reason: a clause for the error."""


class ChildWatch:
    """Checks all children on one thread, which runs while there are any. Any thread may call the methods."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, one: Watched) -> None:
        with self._lock:
            self._watched.add(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="child-watch", daemon=True)
                self._thread.start()

    def remove(self, one: Watched) -> None:
        with self._lock:
            self._watched.discard(one)

    def break_off(self, model: str, reason: str) -> None:
        """End the children that are loading a model for the first time. The load fails with `reason`."""
        with self._lock:
            watched = list(self._watched)
        for one in watched:
            one.break_off(model, reason)

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(INTERVAL_S)
            # A suspended server receives no heartbeats, so its suspension counts as two intervals at most.
            elapsed = min(time.monotonic() - began, 2 * INTERVAL_S)
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._thread = None
                    return
            for one in watched:
                try:
                    one.check(elapsed)
                except Exception:
                    log.exception("looking after a model's process failed")

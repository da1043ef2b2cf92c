"""Looks after every child process once a second: one that gives no sign of life, or takes too long, is ended and replaced.

A sign of life is a heartbeat, which a thread of the child sends while its model executes, or time on a CPU: native code may
hold the interpreter for minutes, and no thread of it runs then.
"""

import logging
import threading
import time
from typing import Protocol

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
# A model whose process has been silent for so long is not ready; a shorter time-out halves it.
NOT_READY_AFTER_S = 10.0


class Watched(Protocol):
    def look(self, elapsed_s: float) -> None:
        """Called every INTERVAL_S, on the watch's thread; must not wait. `elapsed_s`: since the last call."""


class ChildWatch:
    """One thread for all; it runs while there is anything to look after."""

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

    def _run(self) -> None:
        while True:
            began = time.monotonic()
            time.sleep(INTERVAL_S)
            # A server that was itself stopped has missed nothing that its children said: count one turn, not the gap.
            elapsed = min(time.monotonic() - began, 2 * INTERVAL_S)
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._thread = None
                    return
            for one in watched:
                try:
                    one.look(elapsed)
                except Exception:
                    log.exception("looking after a model's process failed")


children = ChildWatch()

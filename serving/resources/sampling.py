"""Reads slow values off the event loop, because reading may hang: /proc of many processes, the driver of a GPU."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 1.0  # a caller that has waited this long takes the previous reading


class Sample(Generic[T]):
    """The latest reading of a value. Each reading runs on a separate thread. While a reading runs or hangs, no other reading
    begins, and the latest value stays. Used on the event loop's thread."""

    def __init__(self, name: str, read: Callable[[], T], interval_s: float = 0.0) -> None:
        """Make the first reading. name: the value's name for the log. interval_s: the least time between two readings."""
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self.latest = read()
        self._began = time.monotonic()
        self._reading: Future[None] | None = None

    @property
    def age(self) -> float:
        """Return the seconds since the latest reading began."""
        return time.monotonic() - self._began

    def refresh(self) -> "Future[None] | None":
        """Begin a reading, unless one is running, and return its future, or None if the latest reading is recent enough."""
        if self._reading is None or self._reading.done():
            if self.age < self._interval_s:
                return None
            self._reading, self._began = Future(), time.monotonic()
            threading.Thread(target=self._run, args=(self._reading,), name=f"read-{self._name}", daemon=True).start()
        return self._reading

    async def refreshed(self) -> None:
        """Wait for a new value, for at most PATIENCE_S after its reading began."""
        reading = self.refresh()
        left = PATIENCE_S - self.age
        if reading is not None and left > 0:
            await asyncio.wait([asyncio.wrap_future(reading)], timeout=left)

    def _run(self, reading: "Future[None]") -> None:
        try:
            self.latest = self._read()
        except Exception:
            log.exception("reading the %s failed", self._name)
        finally:
            reading.set_result(None)

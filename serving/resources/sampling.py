"""Reads values off the loop that take a while or may hang, such as /proc of many processes or the driver of a GPU."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 1.0  # after this time a caller takes the previous reading


class Sample(Generic[T]):
    """The latest reading of a value. Readings follow each other, each on a thread of its own: while one hangs there is no
    other, and the latest value stays. Used on the event loop's thread."""

    def __init__(self, name: str, read: Callable[[], T], interval_s: float = 0.0) -> None:
        """Make the first reading at once. name: for the log. interval_s: a younger reading is not repeated."""
        self._name = name
        self._read = read
        self._interval_s = interval_s
        self.latest = read()
        self._began = time.monotonic()
        self._reading: Future[None] | None = None

    @property
    def age(self) -> float:
        """Return the seconds since the latest reading was begun."""
        return time.monotonic() - self._began

    def refresh(self) -> "Future[None] | None":
        """Begin a reading unless one is under way, and return it; None if the latest is young enough."""
        if self._reading is None or self._reading.done():
            if self.age < self._interval_s:
                return None
            self._reading, self._began = Future(), time.monotonic()
            threading.Thread(target=self._run, args=(self._reading,), name=f"read-{self._name}", daemon=True).start()
        return self._reading

    async def refreshed(self) -> None:
        """Wait for a new value, at most until its reading has taken PATIENCE_S."""
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

"""Values that take a while to read, or may hang: /proc of many processes, the driver of a GPU. They are read off the loop."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 1.0  # whoever waits for a reading goes on with the one before it after this time


class Sample(Generic[T]):
    """The latest reading. Readings follow each other, each on a thread of its own: where one hangs there is no other, and
    the latest value stays. Used on the event loop's thread."""

    def __init__(self, what: str, read: Callable[[], T], interval_s: float = 0.0) -> None:
        """Make the first reading at once. what: for the log; interval_s: a reading that is younger is not made anew."""
        self._what = what
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
        """Begin to read, unless that is under way. Return the reading; None where the latest is young enough."""
        if self._reading is None or self._reading.done():
            if self.age < self._interval_s:
                return None
            self._reading, self._began = Future(), time.monotonic()
            threading.Thread(target=self._run, args=(self._reading,), name=f"read-{self._what}", daemon=True).start()
        return self._reading

    async def refreshed(self) -> None:
        """Return when the value is new, or has taken longer than PATIENCE_S, whoever began to read it."""
        reading = self.refresh()
        left = PATIENCE_S - self.age
        if reading is not None and left > 0:
            await asyncio.wait([asyncio.wrap_future(reading)], timeout=left)

    def _run(self, reading: "Future[None]") -> None:
        try:
            self.latest = self._read()
        except Exception:
            log.exception("reading the %s failed", self._what)
        finally:
            reading.set_result(None)

"""Numbers that the core and all workers share: memory of clients' requests, heartbeats, and whether requests are traced."""

import asyncio
import mmap
import os
import time

from serving.cli.option_values import MAX_WORKERS
from serving.core.errors import Exhausted
from serving.resources.request_memory import CLIENTS, SHORT_S, RequestMemory

_BEATS = MAX_WORKERS + 1
_TRACING = 2 * _BEATS
_REFUSED = _TRACING + 1
_CLIENTS = _REFUSED + 1
_SIZE = 8 * (_CLIENTS + _BEATS * CLIENTS)  # bytes


class SharedPage:
    """The shared numbers. Each process has a slot in `held`, `clients` and `beats`; slot 0 belongs to the core.

    held: bytes of clients' requests in each process. clients: the same bytes for each slot of client addresses, CLIENTS numbers
    for each process. beats: a counter of heartbeats for each worker.
    There is no lock, because each process writes only its own slot. A sum over the slots may be slightly out of date, so all
    processes together may exceed the limit a little."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self._numbers = memoryview(mmap.mmap(descriptor, _SIZE)).cast("q")
        self.held = self._numbers[: workers + 1]
        self.clients = self._numbers[_CLIENTS : _CLIENTS + (workers + 1) * CLIENTS]
        self.beats = self._numbers[_BEATS : _BEATS + workers + 1]

    @classmethod
    def create(cls, workers: int) -> "tuple[SharedPage, int]":
        """Return a new page and its descriptor."""
        descriptor = os.memfd_create("slipway-workers", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor, workers), descriptor

    @property
    def refused_ns(self) -> int:
        """When a client was last refused, in monotonic ns."""
        return self._numbers[_REFUSED]

    @refused_ns.setter
    def refused_ns(self, now: int) -> None:
        self._numbers[_REFUSED] = now

    def forget(self, slot: int) -> None:
        """Clear the numbers of a process that has ended."""
        self.held[slot] = 0
        for at in range(slot * CLIENTS, (slot + 1) * CLIENTS):
            self.clients[at] = 0

    @property
    def tracing(self) -> bool:
        return self._numbers[_TRACING] != 0

    @tracing.setter
    def tracing(self, on: bool) -> None:
        self._numbers[_TRACING] = int(on)


class SharedRequestMemory(RequestMemory):
    """The request memory of one process. All processes share one limit."""

    def __init__(self, limit: int, page: SharedPage, slot: int) -> None:
        super().__init__(limit)
        self.inflating = asyncio.Semaphore(1)  # one for each process, so that processes inflate in parallel
        self._page = page
        self._slot = slot
        page.forget(slot)
        self._by_client = page.clients[slot * CLIENTS : (slot + 1) * CLIENTS]

    @property
    def short(self) -> bool:
        return bool(self._page.refused_ns) and time.monotonic_ns() - self._page.refused_ns < SHORT_S * 1e9

    def exhausted(self) -> Exhausted:
        self._page.refused_ns = time.monotonic_ns()
        return super().exhausted()

    def total(self) -> int:
        return sum(self._page.held)

    def of_client(self, slot: int) -> int:
        return sum(self._page.clients[slot::CLIENTS])

    def clients(self) -> int:
        return sum(any(self._page.clients[slot::CLIENTS]) for slot in range(CLIENTS))

    def take(self, size: int) -> None:
        super().take(size)
        self._page.held[self._slot] = self.taken

    def give(self, size: int) -> None:
        super().give(size)
        self._page.held[self._slot] = self.taken

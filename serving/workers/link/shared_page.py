"""Numbers that the core and all workers see: bytes held of clients' requests, signs of life, whether requests are traced."""

import asyncio
import mmap
import os

from serving.cli.option_values import MAX_WORKERS
from serving.resources.request_memory import RequestMemory

_BEATS = MAX_WORKERS + 1
_TRACING = 2 * _BEATS
_SIZE = 8 * (_TRACING + 1)  # bytes


class SharedPage:
    """held: bytes of clients' requests. beats: counted by each worker while it lives. Slot 0 is the core's."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self._numbers = memoryview(mmap.mmap(descriptor, _SIZE)).cast("q")
        self.held = self._numbers[: workers + 1]
        self.beats = self._numbers[_BEATS : _BEATS + workers + 1]

    @classmethod
    def create(cls, workers: int) -> "tuple[SharedPage, int]":
        """Return a new page and its descriptor."""
        descriptor = os.memfd_create("slipway-workers", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, _SIZE)
        return cls(descriptor, workers), descriptor

    @property
    def tracing(self) -> bool:
        return self._numbers[_TRACING] != 0

    @tracing.setter
    def tracing(self, on: bool) -> None:
        self._numbers[_TRACING] = int(on)


class SharedRequestMemory(RequestMemory):
    """The memory for requests of one process of several, which have one limit together."""

    def __init__(self, limit: int, held: "memoryview[int]", slot: int) -> None:
        super().__init__(limit)
        self.inflating = asyncio.Semaphore(1)  # of each process: they inflate side by side
        self._held = held
        self._slot = slot
        held[slot] = 0

    @property
    def scarce(self) -> bool:
        return 2 * sum(self._held) > self.limit

    def take(self, size: int) -> None:
        if sum(self._held) + size > self.limit:
            raise self.exhausted()
        self.taken += size
        self._held[self._slot] = self.taken

    def give(self, size: int) -> None:
        self.taken -= size
        self._held[self._slot] = self.taken

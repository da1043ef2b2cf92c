"""glibc's allocator: how many heaps it keeps, and when it gives freed memory back. Other allocators are left alone."""

import asyncio
import ctypes
import gc
from concurrent.futures import Executor

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

ARENAS = 2
KEPT = 64 << 20  # bytes at the end of a heap that stay when they are freed
MAPPED_FROM = 32 << 20  # bytes; a larger block is mapped by itself, and unmapped when it is freed


def set_up() -> None:
    """Let all threads share two heaps, and keep some of the freed memory.

    By default glibc gives nearly every thread a heap of its own. Instances come and go with their models, and the memory that
    they free in each heap hardly ever makes whole pages. glibc also returns the pages of a 1 MB body after each request and
    asks for them again with the next one: 240 page faults, 40 % of the processor's time for an inference of that size.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)


class MemoryReturn:
    """Gives freed pages back to the system. One for each server; used on the event loop's thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked = 0
        self._returned = 0

    async def after_free(self, executor: Executor) -> None:
        """Give pages back after a model was freed. All models that are freed during one run share the next run.

        A run takes longer the more models there are, so that one run for each of many models would take minutes.
        """
        self._asked += 1
        mine = self._asked
        async with self._lock:
            if self._returned < mine:
                asked = self._asked
                await asyncio.get_running_loop().run_in_executor(executor, _return_memory)
                self._returned = asked


def _return_memory() -> None:
    """Give freed pages back: glibc keeps them otherwise, and an unloaded model would seem to leak."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return

"""Sets how many heaps glibc's allocator keeps, and when it returns freed memory. Other allocators are not changed."""

import asyncio
import ctypes
import gc
from concurrent.futures import Executor

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

ARENAS = 2
KEPT = 64 << 20  # freed bytes that glibc keeps at the end of a heap
MAPPED_FROM = 32 << 20  # a block of at least this many bytes is mapped separately, and unmapped when it is freed


def set_up() -> None:
    """Let all threads share two heaps, and keep some of the freed memory.

    By default glibc gives nearly every thread a separate heap. Instances of unloaded models free memory in each heap, but
    rarely whole pages. glibc also returns the pages of a 1 MB body after each request and
    asks for them again with the next request. This costs 240 page faults, and 40 % of the processor time of such an inference.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)
        mallopt(_M_TRIM_THRESHOLD, KEPT)
        mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM)


class MemoryReturn:
    """Returns freed pages to the system. Each server has one MemoryReturn, which is used on the event loop's thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked = 0
        self._returned = 0

    async def after_free(self, executor: Executor) -> None:
        """Give pages back to the system after a model was freed. Models that are freed during one run share the next run.

        A run takes longer the more models there are, so a separate run for each of many models would take minutes.
        """
        self._asked += 1
        mine = self._asked
        async with self._lock:
            if self._returned < mine:
                asked = self._asked
                await asyncio.get_running_loop().run_in_executor(executor, _return_memory)
                self._returned = asked


def _return_memory() -> None:
    """Give freed pages back to the system. If glibc kept them, an unloaded model would look like a leak."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):  # not glibc
        return

"""glibc's allocator: how many heaps it keeps, and when it gives freed memory back. Other allocators are left alone."""

import asyncio
import ctypes
import gc
from concurrent.futures import Executor

_M_ARENA_MAX = -8  # of glibc's malloc.h
ARENAS = 2


def bound_arenas() -> None:
    """Let all threads share two heaps. By default glibc gives nearly every thread one of its own: instances come and go with
    their models, and what they leave behind in each heap is never whole pages."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, ARENAS)


class MemoryReturn:
    """Gives freed pages back to the system. One for each server; used on the event loop's thread."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._asked = 0
        self._returned = 0

    async def after_free(self, executor: Executor) -> None:
        """Give pages back after a model was freed, once for all that were freed while one such run was under way.

        It takes the longer the more models there are, so that one run for each of many models would take minutes.
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

"""A shared memory area with places for large tensors. One process allocates and fills places, and the other process reads them.

The area has no name, and is sparse: its size is the memory limit of all requests, but only written pages take memory.
The reader's views of a place refer to a `_Lease`. When the last view is deleted, the place is free, and the reader reports it
to the writer (`AreaReader.freed`).
"""

import mmap
import os
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE = 4096  # bytes; places begin and end at multiples of it
KEPT = 64 << 20  # bytes that stay allocated while nothing is in use


def create_area(size: int) -> int:
    """Create an area of at least `size` bytes. Return its descriptor, which the caller passes on and then closes."""
    descriptor = os.memfd_create("slipway-worker", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, -(-max(size, PAGE) // PAGE) * PAGE)
    return descriptor


class AreaWriter:
    """Allocates places of the area, each in the first free range that is large enough."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self._view = memoryview(self._memory)
        self._size = len(self._memory)
        self._free: list[tuple[int, int]] = [(0, self._size)]  # free ranges (begin, end), in order, never adjacent
        self._used: dict[int, int] = {}  # begin -> end
        self._touched = 0  # end of the part that was used since memory was last returned to the system

    def place(self, size: int) -> int:
        """Allocate a place of `size` bytes and return its offset; -1 if there is no room."""
        needed = -(-size // PAGE) * PAGE
        for index, (begin, end) in enumerate(self._free):
            if end - begin >= needed:
                stop = begin + needed
                if stop == end:
                    del self._free[index]
                else:
                    self._free[index] = (stop, end)
                self._used[begin] = stop
                self._touched = max(self._touched, stop)
                return begin
        return -1

    def write(self, place: int, data: "bytes | memoryview") -> None:
        self._view[place : place + len(data)] = data

    def array(self, place: int, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> NDArray[Any]:
        """Return an array at a place. The caller fills it and does not keep it."""
        return np.ndarray(shape, dtype, self._memory, place)

    def give_back(self, place: int) -> None:
        """Free a place. Called when the reader has reported it as free."""
        begin, end = place, self._used.pop(place)
        free = self._free
        index = bisect_left(free, (begin, end))
        if index < len(free) and free[index][0] == end:
            end = free.pop(index)[1]
        if index and free[index - 1][1] == begin:
            begin = free.pop(index - 1)[0]
        insort(free, (begin, end))
        if not self._used and self._touched > KEPT:
            self._memory.madvise(mmap.MADV_REMOVE, KEPT, self._touched - KEPT)
            self._touched = KEPT


class AreaReader:
    """Makes views of the places that the writer has filled. freed: the places without views, not yet reported to the writer."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, 0)
        self.freed: deque[int] = deque()  # filled by the thread that drops the last view: append and popleft are atomic

    def view(self, place: int, size: int) -> NDArray[np.uint8]:
        """Return the bytes at a place, [size]. The place is free when this array and all views of it are deleted."""
        lease = _Lease(size, np.uint8, self._memory, place)
        lease.release = self.freed.append
        lease.place = place
        return lease

    def take_freed(self) -> list[int]:
        """Return the places in `freed`, and empty it."""
        freed = self.freed
        return [freed.popleft() for _ in range(len(freed))] if freed else []


class _Lease(np.ndarray[Any, Any]):
    """The bytes at a place. Views of this array may have the same class, but only the array itself frees the place."""

    release: Callable[[int], None] | None = None
    place = 0

    def __del__(self) -> None:
        if self.release is not None:
            self.release(self.place)

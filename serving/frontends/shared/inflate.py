"""Decompressing what clients send: step by step, each step charged before it is made, long ones off the event loop.

A bomb of 60 KB becomes 60 MB. Whoever holds the limit on a body's size and the memory of all requests learns of every step,
so that what many bombs become together is bounded as well.
"""

import zlib
from typing import Protocol

from serving.frontends.shared.worker_threads import checkpoint, in_thread
from serving.resources.request_memory import RequestMemory

WINDOW_BITS = {"gzip": 31, "deflate": 15}  # RFC 9110 section 8.4.1: "deflate" means the zlib format
AT_ONCE = 64 << 10  # bytes made on the loop: 0.2 ms
STEP = 1 << 20
_PIECE = 64 << 10  # bytes of input looked at at a time: zlib copies what it leaves of them


class TooLargeError(Exception):
    """The data becomes larger than its limit."""


class Inflater:
    """Makes `made` out of `data`. zlib.error where that is not in the encoding."""

    def __init__(self, data: "bytes | memoryview", encoding: str) -> None:
        self.made = bytearray()
        self._data = memoryview(data)
        self._position = 0
        self._left = b""  # of the piece that is being read
        self._inflater = zlib.decompressobj(WINDOW_BITS[encoding])
        self.done = False  # the stream has ended, or the data

    @property
    def whole(self) -> bool:
        """The data was one complete stream and nothing else."""
        inflater = self._inflater
        return inflater.eof and not inflater.unused_data and self._position == len(self._data)

    def step(self, room: int) -> int:
        """Make at most `room` bytes more; how many they are."""
        made = 0
        while made < room and not self.done:
            checkpoint()
            if not self._left:
                self._left = bytes(self._data[self._position : self._position + _PIECE])
                self._position += len(self._left)
            exhausted = not self._left
            part = self._inflater.decompress(self._left, room - made)
            self._left = self._inflater.unconsumed_tail
            self.made += part
            made += len(part)
            self.done = self._inflater.eof or (exhausted and not part)
        return made


class Holder(Protocol):
    """Whose data it is. `take` is told the bytes of each step before they are made, and may refuse them by an exception;
    `give` those that were not needed."""

    def take(self, size: int) -> object: ...

    def give(self, size: int) -> object: ...


async def inflate(
    data: "bytes | memoryview", encoding: str, limit: int, holder: Holder, memory: RequestMemory
) -> Inflater:
    """The finished inflater. TooLargeError over `limit`, zlib.error for what is not in the encoding."""
    inflater = Inflater(data, encoding)
    room = min(AT_ONCE, limit + 1)
    holder.take(room)
    holder.give(room - inflater.step(room))
    if not inflater.done:
        async with memory.inflating:
            while not inflater.done and len(inflater.made) <= limit:
                room = min(STEP, limit + 1 - len(inflater.made))
                holder.take(room)
                holder.give(room - await in_thread(inflater.step, room))
    if len(inflater.made) > limit:
        raise TooLargeError
    return inflater

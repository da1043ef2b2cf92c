"""gzip and deflate in steps. The memory for a step of inflating is counted before the step. Long work runs on a worker thread.

A zip bomb of 60 KB inflates to 60 MB. Each step counts in the limit of its body and in the memory of all requests, so that many
bombs together are limited, too.
Source: RFC 9110, section 8.4.1, in which "deflate" means the zlib format, as it does in gRPC.
"""

import zlib
from collections.abc import Sequence
from typing import Protocol

from serving.frontends.shared.worker_threads import checkpoint, in_thread
from serving.resources.request_memory import RequestMemory

Buffer = bytes | memoryview

WINDOW_BITS = {"gzip": 31, "deflate": 15}
AT_ONCE = 64 << 10  # bytes that are inflated on the event loop, which takes 0.2 ms
STEP = 1 << 20  # bytes that are inflated, or compressed, between two checks of whether the client still waits
_PIECE = 64 << 10  # bytes of input for one call of zlib, which copies the input that it does not use


class TooLargeError(Exception):
    """The data becomes larger than its limit."""


class Inflater:
    """Inflates `data` into `made`. Raises zlib.error if `data` is not in the encoding."""

    def __init__(self, data: Buffer, encoding: str) -> None:
        self.made = bytearray()
        self._data = memoryview(data)
        self._position = 0
        self._left = b""  # the unused rest of the current piece
        self._inflater = zlib.decompressobj(WINDOW_BITS[encoding])
        self.done = False  # True if the stream or the data has ended

    @property
    def complete(self) -> bool:
        """Whether the data was one complete stream and nothing else."""
        inflater = self._inflater
        return inflater.eof and not inflater.unused_data and self._position == len(self._data)

    def step(self, size: int) -> int:
        """Inflate at most `size` more bytes. Return their number."""
        made = 0
        while made < size and not self.done:
            checkpoint()
            if not self._left:
                self._left = bytes(self._data[self._position : self._position + _PIECE])
                self._position += len(self._left)
            exhausted = not self._left
            part = self._inflater.decompress(self._left, size - made)
            self._left = self._inflater.unconsumed_tail
            self.made += part
            made += len(part)
            self.done = self._inflater.eof or (exhausted and not part)
        return made


class MemoryHolder(Protocol):
    """The request whose data is inflated. take: counts the bytes of a step before the step, and raises if there is too little
    memory. give: releases the bytes that the step did not need."""

    def take(self, size: int) -> object: ...

    def give(self, size: int) -> object: ...


async def inflate(data: Buffer, encoding: str, limit: int, holder: MemoryHolder, memory: RequestMemory) -> Inflater:
    """Inflate the data. Return the inflater, which has the result. Raises TooLargeError if the result is over `limit` bytes,
    zlib.error if the data is not in the encoding."""
    inflater = Inflater(data, encoding)
    size = min(AT_ONCE, limit + 1)
    holder.take(size)
    holder.give(size - inflater.step(size))
    if not inflater.done:
        async with memory.inflating:
            while not inflater.done and len(inflater.made) <= limit:
                size = min(STEP, limit + 1 - len(inflater.made))
                holder.take(size)
                holder.give(size - await in_thread(inflater.step, size))
    if len(inflater.made) > limit:
        raise TooLargeError
    return inflater


def deflate(parts: Sequence[Buffer], encoding: str, level: int, small: bool = False) -> bytes:
    """Return the parts, joined and compressed. level: zlib's level. small: use less memory, which for data of up to 2 KB takes
    a tenth of the time."""
    window = WINDOW_BITS[encoding]
    deflater = zlib.compressobj(level, wbits=window - 4 if small else window, memLevel=3 if small else 8)
    made = []
    for part in parts:
        for start in range(0, len(part), STEP):
            checkpoint()
            made.append(deflater.compress(part[start : start + STEP] if len(part) > STEP else part))
    made.append(deflater.flush())
    return b"".join(made)

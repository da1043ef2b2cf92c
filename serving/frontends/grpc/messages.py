"""The messages of one call as they come: each behind a flag and its length (grpc.io "PROTOCOL-HTTP2").

Small ones are cut out of what has come. A large one is received into a buffer of its own size, whose end is aligned: there
lies the last tensor of an inference request, which then need not be copied again.
"""

from collections.abc import Callable

import numpy as np

PREFIX_SIZE = 5  # one byte for "compressed", four for the length
LARGE_FROM = 64 << 10
_ALIGNMENT = 64


class Messages:
    """`check` gets each prefix (flag, size) before its message has come, and raises for one that is not taken."""

    __slots__ = ("_check", "_compressed", "_filled", "_large", "_unread", "received")

    def __init__(self, check: Callable[[int, int], None]) -> None:
        self._check = check
        self._unread = bytearray()  # without the large message
        self._large: memoryview | None = None
        self._filled = 0
        self._compressed = 0
        self.received = 0  # bytes in all

    def __bool__(self) -> bool:
        """Whether there is a message, or a part of one."""
        return bool(self._unread) or self._large is not None

    def add(self, data: "bytes | memoryview") -> None:
        self.received += len(data)
        self._store(data)

    def _store(self, data: "bytes | memoryview") -> None:
        large = self._large
        if large is not None:
            stop = min(self._filled + len(data), len(large))
            size = stop - self._filled
            large[self._filled : stop] = data[:size]
            self._filled = stop
            data = data[size:]
        self._unread += data

    def next(self) -> "tuple[int, bytes | memoryview] | None":
        """The flag and the content of the next message, once it is whole."""
        if self._large is None:
            unread = self._unread
            if len(unread) < PREFIX_SIZE:
                return None
            compressed, size = unread[0], int.from_bytes(unread[1:PREFIX_SIZE], "big")
            self._check(compressed, size)
            stop = PREFIX_SIZE + size
            if len(unread) >= stop:
                message = bytes(memoryview(unread)[PREFIX_SIZE:stop])
                del unread[:stop]
                return compressed, message
            if size < LARGE_FROM:
                return None
            self._begin_large(compressed, size)
        if self._large is None or self._filled < len(self._large):
            return None
        whole, self._large = self._large, None
        return self._compressed, whole

    def _begin_large(self, compressed: int, size: int) -> None:
        """np.empty leaves the pages untouched: a length that is only claimed costs no memory."""
        shift = -size % _ALIGNMENT
        self._large = np.empty(shift + size, np.uint8).data[shift:]
        self._filled = 0
        self._compressed = compressed
        begun, self._unread = self._unread, bytearray()
        self._store(memoryview(begun)[PREFIX_SIZE:])

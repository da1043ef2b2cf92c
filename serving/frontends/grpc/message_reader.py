"""Length-prefixed messages of one call as they come: each behind a flag and its length (gRPC's PROTOCOL-HTTP2).

Small ones are cut out of what has come. A large one is received into a buffer of its own size, whose end is aligned: there
lies the last tensor of an inference request, which then need not be copied again.
"""

import numpy as np

from serving.frontends.grpc.status import CallError, Status

PREFIX_SIZE = 5  # one byte for "compressed", four for the length
LARGE_FROM = 64 << 10  # bytes
_ALIGNMENT = 64


class MessageReader:
    """Cuts a call's body into messages.

    `max_size` is the largest message, in bytes, and `encoding` the call's grpc-encoding. CallError for a prefix that is not
    taken, before its message has come.
    """

    __slots__ = ("_compressed", "_encoding", "_filled", "_large", "_max_size", "_unread", "received")

    def __init__(self, max_size: int, encoding: str) -> None:
        self._max_size = max_size
        self._encoding = encoding
        self._unread = bytearray()  # without the large message
        self._large: memoryview | None = None
        self._filled = 0
        self._compressed = 0
        self.received = 0  # bytes in all

    def __bool__(self) -> bool:
        """Return whether there is a message, or a part of one."""
        return bool(self._unread) or self._large is not None

    def add(self, data: "bytes | memoryview") -> None:
        """Take the next piece of the body, which is copied."""
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
        """Return the compressed flag (0 or 1) and the content of the next message, once it is complete."""
        if self._large is None:
            unread = self._unread
            if len(unread) < PREFIX_SIZE:
                return None
            compressed, size = unread[0], int.from_bytes(unread[1:PREFIX_SIZE], "big")
            self._check_prefix(compressed, size)
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
        message_buffer, self._large = self._large, None
        return self._compressed, message_buffer

    def _check_prefix(self, compressed: int, size: int) -> None:
        limit = self._max_size
        if size > limit:
            raise CallError(Status.RESOURCE_EXHAUSTED, f"received a message of {size} bytes; at most {limit} are taken")
        if compressed > 1:
            raise CallError(Status.INVALID_ARGUMENT, f"a message's compressed flag is {compressed}; expected 0 or 1")
        if compressed and self._encoding == "identity":
            raise CallError(Status.INVALID_ARGUMENT, "a message is compressed, but grpc-encoding is not set")

    def _begin_large(self, compressed: int, size: int) -> None:
        """Make room for a large message. np.empty leaves the pages untouched: a length that is only claimed costs no memory."""
        shift = -size % _ALIGNMENT
        self._large = np.empty(shift + size, np.uint8).data[shift:]
        self._filled = 0
        self._compressed = compressed
        begun, self._unread = self._unread, bytearray()
        self._store(memoryview(begun)[PREFIX_SIZE:])


def is_one_message(data: "bytes | memoryview", max_size: int) -> bool:
    """Return whether `data` is exactly one uncompressed message: nearly every small call consists of just that."""
    return (
        len(data) >= PREFIX_SIZE
        and not data[0]
        and int.from_bytes(data[1:PREFIX_SIZE], "big") == len(data) - PREFIX_SIZE <= max_size
    )

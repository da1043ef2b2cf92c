"""Reads the messages of a call. Each message is preceded by a flag and its length (gRPC's PROTOCOL-HTTP2).

Small messages are cut out of the received bytes. A large message is received into its own buffer, whose end is aligned, so that
the last tensor of an inference request need not be copied.
"""

import asyncio
import struct
from abc import abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from serving.frontends.grpc.call_headers import CallHead
from serving.frontends.grpc.compression import decompress
from serving.frontends.grpc.status import CallError, Status
from serving.frontends.http2.stream import Stream, StreamConnection
from serving.frontends.shared.client_limits import Awaited
from serving.resources.request_memory import COUNTED_FROM, RequestMemory

PREFIX_SIZE = 5  # bytes: one for the compressed flag, four for the length
_read_prefix = struct.Struct(">BL").unpack_from
LARGE_FROM = 64 << 10  # bytes
_ALIGNMENT = 64


class MessageReader:
    """Splits a call's body into messages. A wrong prefix raises CallError before its message has come.

    max_size: the largest message, in bytes. encoding: the call's grpc-encoding.
    """

    __slots__ = ("_compressed", "_encoding", "_filled", "_large", "_max_size", "_unread", "received", "room")

    def __init__(self, max_size: int, encoding: str) -> None:
        self._max_size = max_size
        self._encoding = encoding
        self._unread = bytearray()  # received bytes that belong to no large message
        self._large: memoryview | None = None
        self._filled = 0
        self._compressed = 0
        self.received = 0  # received bytes in total
        self.room = 0  # missing bytes of a large message

    def __bool__(self) -> bool:
        """Return whether there is a message or part of a message."""
        return bool(self._unread) or self._large is not None

    def add(self, data: "bytes | memoryview") -> None:
        """Copy the next piece of the body."""
        self.received += len(data)
        self._store(data)

    def fill(self, pieces: NDArray[np.uint8]) -> None:
        """Copy several pieces of the large message, which have equal sizes."""
        assert self._large is not None
        at = self._filled
        self._filled = stop = at + pieces.size
        np.asarray(self._large[at:stop]).reshape(pieces.shape)[...] = pieces
        self.received += pieces.size
        self.room -= pieces.size

    def _store(self, data: "bytes | memoryview") -> None:
        if self.room:
            assert self._large is not None
            at = self._filled
            size = min(self.room, len(data))
            self._filled = stop = at + size
            self._large[at:stop] = data[:size]
            self.room -= size
            data = data[size:]
        self._unread += data

    def next(self) -> "tuple[int, bytes | memoryview] | None":
        """Return the compressed flag (0 or 1) and the content of the next message, or None if it is not complete."""
        if self._large is None:
            unread = self._unread
            if len(unread) < PREFIX_SIZE:
                return None
            compressed, size = _read_prefix(unread)
            self._check_prefix(compressed, size)
            stop = PREFIX_SIZE + size
            if len(unread) >= stop:
                message = bytes(memoryview(unread)[PREFIX_SIZE:stop])
                del unread[:stop]
                return compressed, message
            if size < LARGE_FROM:
                return None
            self._begin_large(compressed, size)
        if self._large is None or self.room:
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
        """Allocate a buffer for a large message. np.empty does not touch its pages, so a falsely claimed length costs no
        memory."""
        shift = -size % _ALIGNMENT
        self._large = np.empty(shift + size, np.uint8).data[shift:]
        self._filled = 0
        self.room = size
        self._compressed = compressed
        begun, self._unread = self._unread, bytearray()
        self._store(memoryview(begun)[PREFIX_SIZE:])


class MessageStream(Stream):
    """A stream whose body is read message by message.

    The received bytes count in `memory`, which all requests share, until the client has taken the response. While `wants_more`
    is False, the stream does not read; `resume` continues.
    max_message_size: the largest message in bytes, before and after decompression.
    """

    __slots__ = (
        "answered",
        "decompressing",
        "head",
        "max_message_size",
        "memory",
        "memory_taken",
        "message_memory",
        "reader",
        "reading",
    )

    client_streaming: ClassVar[bool] = False  # True if the client may send several requests, and pause between them

    def __init__(
        self,
        connection: StreamConnection,
        stream_id: int,
        head: CallHead,
        memory: RequestMemory,
        max_message_size: int,
    ) -> None:
        Stream.__init__(self, connection, stream_id)
        self.head = head
        self.memory = memory
        self.max_message_size = max_message_size
        self.answered = False  # True when the final status is decided, so that later messages are ignored
        self.reading = False
        self.reader: MessageReader | None = None  # None while each received piece was exactly one message
        self.memory_taken = 0  # bytes
        self.message_memory = 0  # bytes of memory taken for the message that `message` gets
        self.decompressing: asyncio.Task[None] | None = None

    # -- for subclasses ----------------------------------------------------------------------------------------------
    @abstractmethod
    def message(self, body: "bytes | memoryview", start: int) -> None:
        """Handle one decompressed message, which begins at `start` of `body`. An exception ends the call."""

    def half_closed(self) -> None:
        """Called when the client has sent its last message. An exception ends the call."""

    @abstractmethod
    def fail_because(self, error: Exception) -> None:
        """End the call with the status of an error."""

    def is_idle(self) -> bool:
        """Return whether nothing is under way on a client-streaming call."""
        return True

    # -- reading -----------------------------------------------------------------------------------------------------
    def receive(self, data: "bytes | memoryview", end: bool) -> None:
        if self.answered:
            return
        try:
            if self.reader is None or not self.reader:  # no earlier bytes are left
                if len(data) >= PREFIX_SIZE:
                    compressed, size = _read_prefix(data)
                    # The fast path: a piece that is exactly one uncompressed message, as it is in most calls and streams.
                    if (
                        not compressed
                        and size == len(data) - PREFIX_SIZE <= self.max_message_size
                        and self.decompressing is None
                        and not self.reading
                        and self.wants_more()
                    ):
                        self._take_message(data)
                        if end:
                            self.half_closed()
                        return
                if self.reader is None:
                    self.reader = MessageReader(self.max_message_size, self.head.encoding)
            self.take(len(data))
            self.reader.add(data)
            self._read_messages()
        except Exception as error:
            self.fail_because(error)

    def _take_message(self, data: "bytes | memoryview") -> None:
        self.message_memory = self.take(len(data)) if len(data) > COUNTED_FROM else 0
        self.reading = True
        try:
            self.message(bytes(data), PREFIX_SIZE)
        finally:
            self.reading = False

    def receive_all(self, pieces: NDArray[np.uint8]) -> None:
        if self.reader is None or not self.reader.room:  # a message begins
            self.receive(pieces[0].data, False)
            pieces = pieces[1:]
        if self.reader is None or self.reader.room <= pieces.size:
            super().receive_all(pieces)
            return
        try:
            self.take(pieces.size)
            self.reader.fill(pieces)
        except Exception as error:
            self.fail_because(error)

    def resume(self) -> None:
        """Continue to read, and let the client send more. Called when `wants_more` may be True again."""
        if self.reading or self.answered:
            return
        if self.reader or self.remote_ended:
            self.receive(b"", self.remote_ended)
        self.connection.replenish(self)

    def released(self) -> None:
        """Called when the connection, which made this call wait, has fewer requests under way."""
        self.resume()

    def _read_messages(self) -> None:
        """Call `message` with each complete message, and check the prefix of an incomplete message."""
        self.reading = True
        reader = self.reader
        assert reader is not None
        try:
            while self.decompressing is None and not self.answered and self.wants_more():
                message = reader.next()
                if message is None:
                    break
                self._hand_over(*message)
        finally:
            self.reading = False
        if self.remote_ended and self.decompressing is None and not self.answered and self.wants_more():
            if reader:
                raise CallError(Status.INVALID_ARGUMENT, "the stream ended in the middle of a message")
            self.half_closed()

    def _hand_over(self, compressed: int, content: "bytes | memoryview") -> None:
        self.message_memory = PREFIX_SIZE + len(content)
        if not compressed:
            self.message(content, 0)
            return
        self.decompressing = asyncio.get_running_loop().create_task(self._decompress(content))

    async def _decompress(self, content: "bytes | memoryview") -> None:
        try:
            message = await decompress(content, self.head.encoding, self.max_message_size, self, self.memory)
            if self.answered:
                return
            self.message_memory += len(message)
            self.message(message, 0)
            self.decompressing = None
            self.resume()
        except Exception as error:
            self.fail_because(error)

    def stop_reading(self) -> None:
        self.reader = None
        if self.decompressing is not None and self.decompressing is not asyncio.current_task():
            self.decompressing.cancel()

    # -- memory for requests -----------------------------------------------------------------------------------------
    def take(self, size: int) -> int:
        """Take `size` bytes of request memory, and return `size`. Raises Exhausted if too little is left."""
        self.connection.memory.take(size)
        self.memory_taken += size
        return size

    def give(self, size: int) -> None:
        """Release `size` bytes early. The rest is released when the client has taken the response."""
        self.connection.memory.give(size)
        self.memory_taken -= size

    def counted(self) -> int:
        return self.memory_taken

    def closed(self) -> None:
        if self.memory_taken:
            self.give(self.memory_taken)

    # -- time --------------------------------------------------------------------------------------------------------
    def awaited(self) -> "tuple[Awaited, int] | None":
        if self.outgoing:
            return Awaited.RESPONSE, self.bytes_flushed
        if self.answered or self.remote_ended or self.decompressing is not None:
            return None
        reader = self.reader
        if reader or not self.client_streaming:
            return (Awaited.REQUEST, reader.received if reader is not None else 0) if self.wants_more() else None
        return (Awaited.MESSAGE, 0) if self.is_idle() else None

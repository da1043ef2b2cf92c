"""One HTTP/2 stream, and the writer of all streams of a connection (RFC 9113, sections 5.1 and 5.2)."""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.core.errors import Exhausted
from serving.frontends.http2.frames import (
    DATA,
    DEFAULT_MAX_FRAME_SIZE,
    DEFAULT_WINDOW,
    MAX_WINDOW,
    NO_HEADERS,
    ConnectionFailure,
    ErrorCode,
    HeaderFrame,
    StreamFailure,
    frame_header,
)
from serving.frontends.http2.peer_limits import ConcurrencyLimit
from serving.frontends.shared.client_limits import Awaited
from serving.frontends.shared.large_write import write_large
from serving.resources.request_memory import COUNTED_FROM, ConnectionMemory

_DATA_TYPE = bytes((DATA, 0))  # the type, and no flags

Buffer = bytes | bytearray | memoryview

_ROUND_SIZE = 256 * 1024  # bytes that a stream may send before the next stream's turn
_WORTH_AN_UPDATE = 256  # smaller frames (in bytes) do not count in `frames_sent`, unless they end a buffer
_REFERENCED_FROM = 16 * 1024  # bytes; smaller buffers are joined, larger buffers are not copied


class StreamConnection(Protocol):
    """The part of a connection that its streams use."""

    receive_window: int  # bytes that the peer may send on a new stream
    transport: asyncio.Transport
    writer: "FrameWriter"
    limit: ConcurrencyLimit
    memory: ConnectionMemory

    @property
    def draining(self) -> bool:
        """Whether the connection takes no new streams. Streams that only wait should then end."""

    def replenish(self, stream: "Stream") -> None:
        """Let the peer send more on the stream, if the stream wants more."""

    def reset(self, stream: "Stream", code: ErrorCode) -> None:
        """Reset the stream from this side. Its `aborted` is not called."""

    def response_sent(self, stream: "Stream") -> None:
        """Called when the writer has sent the complete response."""


class Stream:
    """A request and its response. The connection calls the abstract methods, in which the stream may answer."""

    __slots__ = (
        "bytes_flushed",
        "connection",
        "id",
        "outgoing",
        "receive_window",
        "remote_ended",
        "response_complete",
        "send_window",
        "unread_memory",
    )

    def __init__(self, connection: StreamConnection, stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.send_window = connection.writer.initial_window
        self.receive_window = connection.receive_window
        self.remote_ended = False  # True if the request is complete: "half-closed (remote)" in section 5.1
        self.response_complete = False  # True if the response is complete, but perhaps not sent yet
        self.outgoing: deque[bytes | memoryview] | None = None  # unsent frames (bytes) and unsent body (memoryview)
        self.unread_memory = 0  # bytes of request memory that are counted for `outgoing`
        self.bytes_flushed = 0  # bytes of body that were sent after they had to wait

    @abstractmethod
    def opened(self) -> None:
        """Called when the request's headers have come."""

    @abstractmethod
    def receive(self, data: "bytes | memoryview", end: bool) -> None:
        """Handle a piece of the body. data: if a memoryview, valid until this returns. end: whether it is the last piece."""

    def receive_all(self, pieces: NDArray[np.uint8]) -> None:
        """Handle several pieces of the body, none of them the last. pieces: one row for each, valid until this returns."""
        for piece in pieces:
            self.receive(piece.data, False)

    @abstractmethod
    def aborted(self) -> None:
        """Called when the peer has reset the stream, or the connection has ended. Nothing can be answered any more."""

    def wants_more(self) -> bool:
        """Return whether the peer may send more now. If not, the stream calls `connection.replenish` later."""
        return True

    def awaited(self) -> "tuple[Awaited, int] | None":
        """Return what the peer must do next, and how many bytes of it are done, or None if it is the server's turn."""
        return (Awaited.RESPONSE, self.bytes_flushed) if self.outgoing else None

    def waits_for_peer(self) -> bool:
        """Return whether the stream waits for the peer."""
        return self.awaited() is not None

    def overdue(self, awaited: Awaited) -> None:
        """Called when the peer has not done `awaited` in time."""
        self.connection.reset(self, ErrorCode.CANCEL)
        self.aborted()

    def counted(self) -> int:
        """Return the bytes of memory that the request holds until the client has taken its response."""
        return 0

    def keep(self, size: int) -> None:
        """Count the waiting `size` bytes of the response as memory, as far as they exceed the memory of the request. If there
        is too little memory, reset the stream."""
        more = size - self.counted() - self.unread_memory
        if more > COUNTED_FROM:
            try:
                self.connection.memory.take(more)
            except Exhausted:
                self.connection.reset(self, ErrorCode.ENHANCE_YOUR_CALM)
                self.aborted()
            else:
                self.unread_memory += more

    def nothing_waits(self) -> None:
        """Release the memory that `keep` has counted."""
        if self.unread_memory:
            self.connection.memory.give(self.unread_memory)
            self.unread_memory = 0

    def closed(self) -> None:
        """Release the memory. Called when the response has been sent, or the rest of it is dropped."""

    def padded(self, size: int) -> None:
        """Called when the peer has sent `size` bytes of padding, which count in the receive window."""

    def drained(self) -> None:
        """Called when all waiting data has been sent, but the response is not complete yet."""


class FrameWriter:
    """The sending half of a connection. Data is sent immediately if the flow-control windows and the transport allow it.
    Otherwise it waits, and the streams send in turn when the windows open (section 5.2)."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.initial_window = DEFAULT_WINDOW  # the peer's SETTINGS_INITIAL_WINDOW_SIZE
        self.max_frame_size = DEFAULT_MAX_FRAME_SIZE  # the peer's SETTINGS_MAX_FRAME_SIZE
        self.paused = False  # True while the transport's buffer is full
        self.frames_sent = 0  # DATA and HEADERS frames, except tiny frames that small windows of the peer force
        self._transport = transport
        self._window = DEFAULT_WINDOW  # bytes that the connection may send
        self._waiting: dict[int, Stream] = {}

    def send(
        self,
        stream: Stream,
        headers: HeaderFrame,
        body: Sequence[Buffer] = (),
        size: int = 0,
        trailers: HeaderFrame = NO_HEADERS,
    ) -> None:
        """Send headers, body and trailers, each of which may be empty. Trailers end the stream. Data that cannot be sent now
        waits in `stream.outgoing`. body: buffers of `size` bytes in total, which must not change any more."""
        identifier = stream.id.to_bytes(4, "big")
        start, block = headers
        head = (start, identifier, block) if start else ()
        start, block = trailers
        tail = (start, identifier, block) if start else ()
        if tail:
            stream.response_complete = True
        if (  # the body fits into one DATA frame that may be sent now; comparisons are cheaper than min()
            size <= self._window
            and size <= stream.send_window
            and size <= self.max_frame_size
            and size <= _ROUND_SIZE
            and not self.paused
            and not stream.outgoing
        ):
            self.frames_sent += 1
            if size:
                self._window -= size
                stream.send_window -= size
                frames = (*head, size.to_bytes(3, "big"), _DATA_TYPE, identifier, *body, *tail)
            else:
                frames = head + tail
            self._transport.write(b"".join(frames))
            if tail:
                stream.connection.response_sent(stream)
            return
        self._queue(stream, [b"".join(head), *_views(body), b"".join(tail)])

    def _queue(self, stream: Stream, items: "list[bytes | memoryview]") -> None:
        if stream.outgoing is None:
            stream.outgoing = deque()
        stream.outgoing.extend(item for item in items if item)
        self._waiting[stream.id] = stream
        self.flush()
        if stream.outgoing:
            stream.keep(sum(map(len, stream.outgoing)))

    def drop(self, stream: Stream) -> None:
        """Drop the unsent part of the stream's response."""
        stream.outgoing = None
        stream.nothing_waits()
        self._waiting.pop(stream.id, None)

    def flush(self) -> None:
        """Let the waiting streams send in turn until no stream can send more."""
        progress = True
        while progress and not self.paused:
            progress = False
            for stream in list(self._waiting.values()):
                if not self.paused and self._send_round(stream):
                    progress = True

    def _send_round(self, stream: Stream) -> bool:
        """Send up to _ROUND_SIZE bytes of one stream. Return False if it could send nothing."""
        outgoing = stream.outgoing
        if not outgoing:
            self._waiting.pop(stream.id, None)
            return False
        frames: list[bytes | memoryview] = []
        left = _ROUND_SIZE
        while outgoing and left > 0:
            item = outgoing[0]
            if isinstance(item, bytes):
                frames.append(item)
                outgoing.popleft()
                self.frames_sent += 1
                continue
            size = min(len(item), left, self._window, stream.send_window)
            if size <= 0:
                break
            self._add_frames(frames, stream.id, item[:size], size == len(item))
            self._window -= size
            stream.send_window -= size
            stream.bytes_flushed += size
            left -= size
            if size == len(item):
                outgoing.popleft()
            else:
                outgoing[0] = item[size:]
        if not frames:
            return False
        write_large(self._transport, frames)
        if not outgoing:
            self._waiting.pop(stream.id, None)
            stream.nothing_waits()
            if stream.response_complete:
                stream.connection.response_sent(stream)
            else:
                stream.drained()
        return True

    def _add_frames(self, frames: "list[bytes | memoryview]", stream_id: int, data: memoryview, is_last: bool) -> None:
        """Split `data` into DATA frames of the largest allowed size. is_last: whether `data` is the end of its buffer."""
        step = self.max_frame_size
        whole, rest = divmod(len(data), step)
        header = frame_header(step, DATA, 0, stream_id)
        for at in range(0, whole * step, step):
            frames += (header, data[at : at + step])
        if rest:
            frames += (frame_header(rest, DATA, 0, stream_id), data[-rest:])
        self.frames_sent += whole
        if rest and (is_last or rest >= _WORTH_AN_UPDATE):
            self.frames_sent += 1

    # -- the peer's settings and window updates ----------------------------------------------------------------------
    def open_connection_window(self, increment: int) -> None:
        """Widen the connection's send window by `increment` bytes."""
        self._window += increment
        if self._window > MAX_WINDOW:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is over 2^31-1")
        if self._waiting:
            self.flush()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        """Widen the stream's send window by `increment` bytes."""
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, stream.id)
        while stream.outgoing and not self.paused and self._send_round(stream):  # no other window has changed
            pass

    def set_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """Set the peer's SETTINGS_INITIAL_WINDOW_SIZE, in bytes. The windows of the open `streams` change by the difference,
        and may become negative (section 6.9.2)."""
        delta = value - self.initial_window
        self.initial_window = value
        for stream in streams:
            stream.send_window += delta
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is over 2^31-1")
        self.flush()


def _views(body: Iterable[Buffer]) -> list[memoryview]:
    """Return views of the buffers, with adjacent small buffers joined. Each view is sent in separate frames."""
    views: list[memoryview] = []
    small: list[Buffer] = []
    for part in body:
        if len(part) < _REFERENCED_FROM:
            small.append(part)
            continue
        if small:
            views.append(memoryview(b"".join(small)))
            small = []
        views.append(memoryview(part))
    return [*views, memoryview(b"".join(small))]

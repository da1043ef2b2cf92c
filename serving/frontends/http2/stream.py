"""One HTTP/2 stream, and the writer that shares a connection between its streams (RFC 9113, sections 5.1 and 5.2)."""

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

_DATA_TYPE = bytes((DATA, 0))  # and no flags

Buffer = bytes | bytearray | memoryview

_ROUND_SIZE = 256 * 1024  # bytes that a stream sends before the next stream may send
_WORTH_AN_UPDATE = 256  # least bytes of a frame that counts in `frames_sent`, unless the frame ends its buffer
_REFERENCED_FROM = 16 * 1024  # bytes: smaller buffers are joined, larger ones are not copied


class StreamConnection(Protocol):
    """The part of a connection that its streams use."""

    receive_window: int  # bytes that the peer may send on a new stream
    transport: asyncio.Transport
    writer: "FrameWriter"
    limit: ConcurrencyLimit
    memory: ConnectionMemory

    @property
    def draining(self) -> bool:
        """Return whether the connection takes no new streams; streams that only wait should end then."""

    def replenish(self, stream: "Stream") -> None:
        """Let the peer send more on the stream, if it takes more now."""

    def reset(self, stream: "Stream", code: ErrorCode) -> None:
        """Break the stream off from our side; its `aborted` is not called."""

    def response_sent(self, stream: "Stream") -> None:
        """The writer has sent the whole response."""


class Stream:
    """A request and its response. The connection calls the abstract methods, and the stream may answer inside of them."""

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
        self.remote_ended = False  # the request is complete: "half-closed (remote)" in section 5.1
        self.response_complete = False  # the response is complete, but perhaps not sent yet
        self.outgoing: deque[bytes | memoryview] | None = None  # unsent frames (bytes), and body (memoryview)
        self.unread_memory = 0  # bytes that are counted for `outgoing`
        self.bytes_flushed = 0  # bytes of body that had to wait and have been sent

    @abstractmethod
    def opened(self) -> None:
        """The request's headers have come."""

    @abstractmethod
    def receive(self, data: "bytes | memoryview", end: bool) -> None:
        """Take a piece of the body; a memoryview is valid only until this returns. end: it is the last piece."""

    def receive_all(self, pieces: NDArray[np.uint8]) -> None:
        """Take several pieces of the body [number, bytes of each], without the last piece; valid until this returns."""
        for piece in pieces:
            self.receive(piece.data, False)

    @abstractmethod
    def aborted(self) -> None:
        """The peer or the connection has gone: nothing can be answered any more."""

    def wants_more(self) -> bool:
        """Return whether the peer may send more now. If not, the stream calls `connection.replenish` later."""
        return True

    def awaited(self) -> "tuple[Awaited, int] | None":
        """Return the peer's next task, and how many bytes of it are done; None while it is the server's turn."""
        return (Awaited.RESPONSE, self.bytes_flushed) if self.outgoing else None

    def waits_for_peer(self) -> bool:
        """Return whether nothing happens until the peer does something."""
        return self.awaited() is not None

    def overdue(self, awaited: Awaited) -> None:
        """The peer has not done the awaited task in time."""
        self.connection.reset(self, ErrorCode.CANCEL)
        self.aborted()

    def counted(self) -> int:
        """Return the bytes of memory that the request keeps until its response, which may be as large, is taken."""
        return 0

    def keep(self, size: int) -> None:
        """Count memory for the `size` bytes of the response that wait for the peer, as far as they exceed the memory of the
        request. If there is no memory, reset the stream."""
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
        """Give back the memory that `keep` has counted."""
        if self.unread_memory:
            self.connection.memory.give(self.unread_memory)
            self.unread_memory = 0

    def closed(self) -> None:
        """The response has been sent, or the rest of it is dropped: the stream gives back its memory."""

    def padded(self, size: int) -> None:
        """The peer has sent `size` bytes of padding, which count as received."""

    def drained(self) -> None:
        """All waiting data has been sent, and the response is not complete yet."""


class FrameWriter:
    """The sending half of a connection. Data is sent immediately if the flow-control windows and the transport allow that.
    Otherwise it waits, and the streams send in rounds when the windows open (section 5.2)."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.initial_window = DEFAULT_WINDOW  # the peer's SETTINGS_INITIAL_WINDOW_SIZE
        self.max_frame_size = DEFAULT_MAX_FRAME_SIZE  # the peer's
        self.paused = False  # the transport takes no more for now
        self.frames_sent = 0  # DATA and HEADERS, without the tiny frames that the peer's windows force
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
        """Send headers, body (buffers of `size` bytes in all, which must not change any more) and trailers, which end the
        stream; each may be empty. Data that cannot be sent now waits in `stream.outgoing`."""
        identifier = stream.id.to_bytes(4, "big")
        start, block = headers
        head = (start, identifier, block) if start else ()
        start, block = trailers
        tail = (start, identifier, block) if start else ()
        if tail:
            stream.response_complete = True
        if (  # the body fits into one DATA frame, which may be sent now; comparisons are cheaper than min
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
        """Send rounds of all waiting streams until the windows or the transport let no stream send more."""
        progress = True
        while progress and not self.paused:
            progress = False
            for stream in list(self._waiting.values()):
                if not self.paused and self._send_round(stream):
                    progress = True

    def _send_round(self, stream: Stream) -> bool:
        """Send up to a round's bytes of one stream; return False if the stream could send nothing."""
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
        """Put `data` into DATA frames as large as the peer takes them. is_last: `data` is the end of its buffer."""
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
        """The peer takes `increment` bytes more on all streams together."""
        self._window += increment
        if self._window > MAX_WINDOW:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is over 2^31-1")
        if self._waiting:
            self.flush()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        """The peer takes `increment` bytes more on this stream."""
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, stream.id)
        while stream.outgoing and not self.paused and self._send_round(stream):  # other streams' windows are as before
            pass

    def set_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """Take the peer's SETTINGS_INITIAL_WINDOW_SIZE, in bytes. A change also moves the windows of the open `streams`, which
        may become negative (section 6.9.2)."""
        delta = value - self.initial_window
        self.initial_window = value
        for stream in streams:
            stream.send_window += delta
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is over 2^31-1")
        self.flush()


def _views(body: Iterable[Buffer]) -> list[memoryview]:
    """Return views of large buffers, and of small buffers joined with their neighbours: each view is sent in its own frames."""
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

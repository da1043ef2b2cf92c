"""One HTTP/2 stream, and how the streams of a connection share what may be sent (RFC 9113, sections 5.1 and 5.2)."""

from abc import ABC, abstractmethod
from asyncio import WriteTransport
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from serving.frontends.http2.frames import (
    DATA,
    DEFAULT_MAX_FRAME_SIZE,
    DEFAULT_WINDOW,
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    HEADERS,
    MAX_WINDOW,
    ConnectionFailure,
    ErrorCode,
    StreamFailure,
    frame_header,
)
from serving.frontends.shared.client_limits import Awaited
from serving.frontends.shared.large_write import write_large

if TYPE_CHECKING:
    from serving.frontends.http2.connection import Connection

_TURN = 256 * 1024  # bytes that a stream sends before the next one may send
_WORTH_AN_UPDATE = 256  # bytes of a frame
_VIEWED = 16 * 1024  # bytes: larger buffers are not copied


class Stream(ABC):
    """A request and its response. The connection calls the abstract methods; they may answer at once."""

    __slots__ = ("connection", "ending", "id", "outgoing", "pushed", "receive_window", "remote_ended", "send_window")

    def __init__(self, connection: "Connection[Any]", stream_id: int) -> None:
        self.connection = connection
        self.id = stream_id
        self.send_window = connection.output.initial_window
        self.receive_window = connection.receive_window
        self.remote_ended = False
        self.ending = False  # the response is complete, though perhaps not yet sent
        self.outgoing: deque[bytes | memoryview] | None = None  # what waits: finished frames, or (memoryview) body
        self.pushed = 0  # bytes of it that have been sent after all

    @abstractmethod
    def opened(self) -> None:
        """The headers have come."""

    @abstractmethod
    def receive(self, data: "bytes | memoryview", end: bool) -> None:
        """A piece of the body; a memoryview is good only until this returns."""

    @abstractmethod
    def aborted(self) -> None:
        """The peer or the connection has gone: nothing can be answered any more."""

    def wants_more(self) -> bool:
        """Whether the peer may send more now; otherwise `connection.replenish` says when."""
        return True

    def awaited(self) -> "tuple[Awaited, int] | None":
        """What the peer is to do next, and how many bytes it has done of it; None while it is the server's turn."""
        return (Awaited.RESPONSE, self.pushed) if self.outgoing else None

    def overdue(self, awaited: Awaited) -> None:
        """The peer has not done it in time."""
        self.connection.reset(self, ErrorCode.CANCEL)
        self.aborted()

    def sent(self) -> None:  # noqa: B027
        """All of the response has left, or what was left of it is dropped: nothing is kept for this stream any more."""

    def drained(self) -> None:  # noqa: B027
        """What had to wait has been sent, and the response goes on."""


class Output:
    """What one connection sends: at once where windows and transport allow, else in turns as they open."""

    def __init__(self, transport: WriteTransport, initial_window: int = DEFAULT_WINDOW) -> None:
        self.initial_window = initial_window
        self.max_frame_size = DEFAULT_MAX_FRAME_SIZE
        self.paused = False
        self.sent = 0  # frames of DATA and HEADERS, but for crumbs that the peer's windows make of them
        self._transport = transport
        self._window = DEFAULT_WINDOW
        self._waiting: dict[int, Stream] = {}

    def send(
        self, stream: Stream, headers: bytes, body: Iterable[Any] = (), size: int = 0, trailers: bytes = b""
    ) -> None:
        """Queue header block, body (buffers of `size` bytes in all, which nobody changes any more) and trailer block, which
        ends the stream; each may be empty."""
        head = frame_header(len(headers), HEADERS, FLAG_END_HEADERS, stream.id) + headers if headers else b""
        tail = b""
        if trailers:
            flags = FLAG_END_HEADERS | FLAG_END_STREAM
            tail = frame_header(len(trailers), HEADERS, flags, stream.id) + trailers
            stream.ending = True
        if size <= self._room(stream):
            self.sent += 1
            self._window -= size
            stream.send_window -= size
            data_header = frame_header(size, DATA, 0, stream.id) if size else b""
            self._transport.write(b"".join((head, data_header, *body, tail)))
            if tail:
                stream.connection.ended(stream)
            return
        self._queue(stream, [head, *_views(body), tail])

    def _room(self, stream: Stream) -> int:
        """The bytes of body that may be sent in one frame now; -1 where not even headers may."""
        if self.paused or stream.outgoing:
            return -1
        return min(self._window, stream.send_window, self.max_frame_size, _TURN)

    def _queue(self, stream: Stream, items: "list[bytes | memoryview]") -> None:
        if stream.outgoing is None:
            stream.outgoing = deque()
        stream.outgoing.extend(item for item in items if item)
        self._waiting[stream.id] = stream
        self.pump()

    def drop(self, stream: Stream) -> None:
        """Forget what the stream still has to send."""
        stream.outgoing = None
        self._waiting.pop(stream.id, None)

    def pump(self) -> None:
        """Send what may be sent, a turn for each stream until none can."""
        progress = True
        while progress and not self.paused:
            progress = False
            for stream in list(self._waiting.values()):
                if not self.paused and self._push(stream):
                    progress = True

    def _push(self, stream: Stream) -> bool:
        """One turn of a stream; False where it could send nothing."""
        outgoing = stream.outgoing
        if not outgoing:
            self._waiting.pop(stream.id, None)
            return False
        frames: list[bytes | memoryview] = []
        turn = _TURN
        while outgoing and turn > 0:
            item = outgoing[0]
            if isinstance(item, bytes):
                frames.append(item)
                outgoing.popleft()
                self.sent += 1
                continue
            size = min(len(item), turn, self._window, stream.send_window, self.max_frame_size)
            if size <= 0:
                break
            frames.append(frame_header(size, DATA, 0, stream.id))
            frames.append(item[:size])
            if size == len(item) or size >= _WORTH_AN_UPDATE:
                self.sent += 1
            self._window -= size
            stream.send_window -= size
            stream.pushed += size
            turn -= size
            if size == len(item):
                outgoing.popleft()
            else:
                outgoing[0] = item[size:]
        if not frames:
            return False
        write_large(self._transport, frames)
        if not outgoing:
            self._waiting.pop(stream.id, None)
            if stream.ending:
                stream.connection.ended(stream)
            else:
                stream.drained()
        return True

    # -- the peer's settings and window updates ----------------------------------------------------------------------
    def open_connection_window(self, increment: int) -> None:
        self._window += increment
        if self._window > MAX_WINDOW:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window is over 2^31-1")
        if self._waiting:
            self.pump()

    def open_stream_window(self, stream: Stream, increment: int) -> None:
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, stream.id)
        while stream.outgoing and not self.paused and self._push(stream):  # the others' windows are as they were
            pass

    def set_initial_window(self, value: int, streams: Iterable[Stream]) -> None:
        """A change also moves the windows of open streams, which may become negative (section 6.9.2)."""
        delta = value - self.initial_window
        self.initial_window = value
        for stream in streams:
            stream.send_window += delta
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "a stream's window is over 2^31-1")
        self.pump()


def _views(body: Iterable[Any]) -> list[memoryview]:
    """Large buffers as they are, small ones joined with their neighbours: each of these becomes a frame or more."""
    views: list[memoryview] = []
    small: list[Any] = []
    for part in body:
        if len(part) < _VIEWED:
            small.append(part)
            continue
        if small:
            views.append(memoryview(b"".join(small)))
            small = []
        views.append(memoryview(part))
    return [*views, memoryview(b"".join(small))]

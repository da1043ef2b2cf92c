"""The server's side of one HTTP/2 connection as an asyncio protocol (RFC 9113).

The connection reads frames, manages streams and flow-control windows, and limits the work that a peer can cause. A subclass of
Stream handles the request of each stream.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Generic, Protocol, cast

from mypy_extensions import mypyc_attr

from serving.frontends.http2 import frames as h2
from serving.frontends.http2.frame_reader import RECEIVED_FRAME_SIZE, FrameReader, Pieces
from serving.frontends.http2.frames import (
    FLAG_END_STREAM,
    FLAG_PADDED,
    ConnectionFailure,
    ErrorCode,
    Setting,
    StreamFailure,
)
from serving.frontends.http2.header_decompression import MAX_HEADER_LIST_SIZE, HeaderList
from serving.frontends.http2.headers import Head, HeaderDecoder
from serving.frontends.http2.keepalive import DEFAULTS, KEEPALIVE_PING, Keepalive, KeepaliveSettings
from serving.frontends.http2.open_streams import OpenStreams
from serving.frontends.http2.peer_limits import ConcurrencyLimit, FloodLimiter
from serving.frontends.http2.stream import FrameWriter, Stream
from serving.frontends.shared import open_connections
from serving.frontends.shared.client_limits import STANDARD, TAKEN, ClientTimeouts, ProgressWatch, taken_by_peer
from serving.resources.request_memory import ConnectionMemory, RequestMemory

log = logging.getLogger(__name__)

MAX_CONCURRENT_STREAMS = 1024
STREAM_WINDOW = 16 << 20  # bytes
CONNECTION_WINDOW = 1 << 30  # bytes; practically no limit, because each stream has its own
_UPDATE_AFTER = CONNECTION_WINDOW // 4
_REPLENISH_BELOW = STREAM_WINDOW // 2

PREFACE_TIMEOUT_S = 10.0
STALLED_TIMEOUT_S = 60.0  # the connection is aborted if its peer reads too little in this time
CLOSE_TIMEOUT_S = 5.0  # a closing connection is aborted if its peer reads nothing in this time
DRAIN_NOTICE_S = 1.0

_OUR_SETTINGS = h2.settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_CONCURRENT_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        Setting.MAX_FRAME_SIZE: RECEIVED_FRAME_SIZE,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
    }
) + h2.window_update(0, CONNECTION_WINDOW - h2.DEFAULT_WINDOW)


class Companion(Protocol):
    """An object that the streams of a connection share. It is closed with the connection."""

    def close(self) -> None:
        """Called when the connection has ended."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(FrameReader, Generic[Head]):
    """Makes streams from frames. Used on the event loop's thread.

    parse_head: makes the head of a request from its header list. make_stream: creates a stream from the connection, the stream
    identifier and the head. connections: contains the connection while it is open. scratch: the listener's receive buffer.
    memory: the server's request memory; if it is scarce, a slow peer gets less time.
    """

    __slots__ = (  # CPython reads attributes more slowly from a dict with more than 29 entries
        "_bytes_received",
        "_connections",
        "_decoder",
        "_draining",
        "_flood",
        "_handlers",
        "_keepalive",
        "_make_stream",
        "_progress",
        "_refusing",
        "_request_memory",
        "_since",
        "_streams",
        "_taken",
        "companion",
        "limit",
        "memory",
        "receive_window",
        "transport",
        "writer",
    )

    def __init__(
        self,
        parse_head: Callable[[HeaderList], Head],
        make_stream: "Callable[[Connection[Head], int, Head], Stream]",
        connections: "set[Connection[Head]]",
        scratch: memoryview,
        keepalive: KeepaliveSettings = DEFAULTS,
        timeouts: ClientTimeouts = STANDARD,
        memory: RequestMemory | None = None,
    ) -> None:
        super().__init__(scratch)
        self._decoder = HeaderDecoder(parse_head)
        self._make_stream = make_stream
        self._connections = connections
        self._streams = OpenStreams()
        self._bytes_received = 0  # bytes of DATA since the last WINDOW_UPDATE of the connection
        self._flood = FloodLimiter()
        self._keepalive = Keepalive(keepalive, time.monotonic())
        self._request_memory = memory or RequestMemory()
        self._progress = ProgressWatch(timeouts, self._request_memory)
        self.limit = ConcurrencyLimit(MAX_CONCURRENT_STREAMS)
        self.receive_window = STREAM_WINDOW
        self.companion: Companion | None = None
        self._draining = self._refusing = False
        self._since = time.monotonic()  # when the present state with a timeout began: preface, stalled or closing
        self._taken = 0  # `taken_by_peer` when the state stalled or closing began
        self._handlers = {
            h2.PRIORITY: self._on_priority,
            h2.RST_STREAM: self._on_rst_stream,
            h2.SETTINGS: self._on_settings,
            h2.PUSH_PROMISE: self._on_push_promise,
            h2.PING: self._on_ping,
            h2.GOAWAY: self._on_goaway,
        }

    # -- asyncio -----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 20)
        # Without SO_KEEPALIVE the server would never notice that the peer's machine has crashed.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer = transport.get_extra_info("peername")
        self.memory = ConnectionMemory(self._request_memory, str(peer[0]) if peer else "")
        self.writer = FrameWriter(self.transport)
        self._connections.add(self)
        self.transport.write(_OUR_SETTINGS)
        open_connections.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        self._connections.discard(self)
        open_connections.closed(self)
        self._abort_streams()
        if self.companion is not None:
            self.companion.close()

    def pause_writing(self) -> None:
        self.writer.paused = True
        self._since = time.monotonic()
        self._taken = taken_by_peer(self.transport)

    def resume_writing(self) -> None:
        self.writer.paused = False
        self._flood.unread_replies = 0
        self.writer.flush()

    # -- DATA and receive windows (sections 5.2 and 6.1) ---------------------------------------------------------------
    def on_data(self, stream_id: int, flags: int, data: "bytes | memoryview") -> None:
        ends = flags & FLAG_END_STREAM != 0
        stream = self._receive(stream_id, len(data), ends)
        if flags & FLAG_PADDED:
            data = self._without_padding(stream, data)
        if not data and not ends:
            self._flood.charge()
        if stream is not None:
            self._deliver(stream, data, ends)

    def _without_padding(self, stream: Stream | None, data: "bytes | memoryview") -> "bytes | memoryview":
        padded = len(data)
        data = h2.without_padding(data)
        if stream is not None:
            stream.padded(padded - len(data))
        return data

    def on_data_run(self, stream_id: int, pieces: Pieces) -> None:
        stream = self._receive(stream_id, pieces.size, False)
        if stream is not None:
            if stream.receive_window < _REPLENISH_BELOW:
                self.replenish(stream)
            stream.receive_all(pieces)

    def on_part_begins(self, stream_id: int, length: int, ends: bool) -> None:
        self._receive(stream_id, length, ends)

    def on_part(self, stream_id: int, data: memoryview, ends: bool) -> None:
        stream = self._streams.by_id.get(stream_id)
        if stream is not None:
            self._deliver(stream, data, ends)

    def _receive(self, stream_id: int, length: int, ends: bool) -> Stream | None:
        """Count the bytes of a DATA frame. Return its stream, or None if the frame must be ignored."""
        self._bytes_received += length
        if self._bytes_received >= _UPDATE_AFTER:
            self.transport.write(h2.window_update(0, self._bytes_received))
            self._bytes_received = 0
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.remote_ended:
            self._streams.check_late_data(stream_id, ends)
            return None
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, stream_id)
        return stream

    def _deliver(self, stream: Stream, data: "bytes | memoryview", ends: bool) -> None:
        if ends:
            stream.remote_ended = True
        elif stream.receive_window < _REPLENISH_BELOW:
            self.replenish(stream)
        stream.receive(data, ends)

    def replenish(self, stream: Stream) -> None:
        """Restore the stream's receive window if half of it is used and the stream wants more."""
        if stream.receive_window < _REPLENISH_BELOW and not stream.remote_ended and stream.wants_more():
            self.transport.write(h2.window_update(stream.id, STREAM_WINDOW - stream.receive_window))
            stream.receive_window = STREAM_WINDOW

    # -- HEADERS (section 6.2) ---------------------------------------------------------------------------------------
    def on_header_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Handle a complete header block: a new request, or the trailers of a request."""
        streams = self._streams
        if stream_id <= streams.last_id:
            self._on_trailers(stream_id, block, ends)
            return
        streams.last_id = stream_id
        head = self._decoder.decode(block)
        if self._refusing or len(streams.by_id) >= self.limit.max_streams:
            raise StreamFailure(ErrorCode.REFUSED_STREAM, stream_id)
        stream = self._make_stream(self, stream_id, head)
        streams.by_id[stream_id] = stream
        self._flood.streams_opened += 1
        stream.remote_ended = ends
        stream.opened()
        if ends and not stream.response_complete:
            stream.receive(b"", True)

    def _on_trailers(self, stream_id: int, block: bytes, ends: bool) -> None:
        self._decoder.decode_fields(block)
        stream = self._streams.for_trailers(stream_id, ends)
        if stream is not None:
            self._deliver(stream, b"", True)

    # -- the other frames (sections 6.3 to 6.9) ------------------------------------------------------------------------
    def on_window_update(self, stream_id: int, payload: bytes) -> None:
        streams = self._streams
        if stream_id > streams.last_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
        writer = self.writer
        self._flood.charge_window_update(writer.frames_sent)
        increment = h2.read_increment(stream_id, payload)
        if not stream_id:
            writer.open_connection_window(increment)
            return
        stream = streams.by_id.get(stream_id)
        if stream is not None:
            writer.open_stream_window(stream, increment)

    def on_frame(self, kind: int, stream_id: int, flags: int, payload: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(stream_id, flags, payload)
        else:
            self._flood.charge()  # an extension, ignored (section 5.5)

    def _on_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        self._flood.charge()
        h2.check_priority(stream_id, payload)

    def _on_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        h2.check_rst_stream(payload)
        self._streams.reset_by_peer(stream_id)
        self._flood.charge()
        self._abort(stream_id)

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        values = h2.read_settings(stream_id, flags, payload)
        if flags & h2.FLAG_ACK:
            return
        self._flood.charge()
        self.expects_settings = False
        for key, value in dict(values).items():  # the last value of each setting: a change may update all streams
            if key == Setting.INITIAL_WINDOW_SIZE:
                self.writer.set_initial_window(value, list(self._streams.by_id.values()))
            elif key == Setting.MAX_FRAME_SIZE:
                self.writer.max_frame_size = value
        self._reply(h2.SETTINGS_ACK)

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        h2.check_ping(stream_id, payload)
        if not flags & h2.FLAG_ACK:
            self._flood.charge()
            if self._keepalive.peer_pings_too_often(time.monotonic(), self._traffic(), bool(self._streams.by_id)):
                raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
            self._reply(h2.frame(h2.PING, h2.FLAG_ACK, 0, payload))
        elif payload == KEEPALIVE_PING:
            self._keepalive.ping_answered(time.monotonic())
        elif self._draining:
            self._refuse_new_streams()

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        h2.check_goaway(stream_id, payload)
        self._flood.charge()
        self._draining = self._refusing = True
        self._close_if_done()

    def _reply(self, data: bytes) -> None:
        """Answer a control frame. Fail if the peer does not read, and too many answers are unread."""
        if self.writer.paused:
            self._flood.charge_unread_reply(len(data))
        self.transport.write(data)

    # -- time --------------------------------------------------------------------------------------------------------
    def tick(self, now: float, elapsed: float) -> None:
        """End the connection if a timeout has passed. Called about every second. now: the monotonic time. elapsed: the seconds
        since the previous call."""
        self._flood.refill(elapsed)
        idle = now - self._since
        if self.closing:
            if idle > CLOSE_TIMEOUT_S and self._taken_since(now) == 0:
                self.transport.abort()
        elif self.expects_settings:
            if idle > PREFACE_TIMEOUT_S:
                self.fail(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came")
        elif self._keepalive.is_dead(now) or (
            self.writer.paused and idle > STALLED_TIMEOUT_S and self._taken_since(now) < TAKEN
        ):
            self.transport.abort()
        else:
            self._keep_alive(now)
            taken = taken_by_peer(self.transport) if self.writer.paused else None
            self._progress.watch(self._streams.by_id.values(), now, self.memory, taken)

    def _taken_since(self, now: float) -> int:
        """Return how many written bytes the peer has taken since the previous call, or since the state began."""
        before, self._taken = self._taken, taken_by_peer(self.transport)
        self._since = now
        return self._taken - before

    def _keep_alive(self, now: float) -> None:
        keepalive = self._keepalive
        if keepalive.is_old(now, grace=True):
            self.close()
        elif keepalive.is_old(now):
            self.drain()
        elif keepalive.wants_ping(now, self._traffic(), bool(self._streams.by_id)):
            self.transport.write(h2.frame(h2.PING, 0, 0, KEEPALIVE_PING))

    def _traffic(self) -> object:
        """Return a value that changes with each DATA or HEADERS frame sent or received."""
        return self._streams.last_id, self._bytes_received, self.writer.frames_sent

    # -- streams end -------------------------------------------------------------------------------------------------
    def response_sent(self, stream: Stream) -> None:
        """Close a stream whose response has been sent. The rest of its request is ignored."""
        if self._streams.by_id.pop(stream.id, None) is None:
            return
        stream.closed()
        self._flood.refund()
        if not stream.remote_ended:
            self.transport.write(h2.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._streams.ignore(stream.id)
        if self._refusing:
            self._close_if_done()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Reset a stream from this side. Its `aborted` is not called."""
        if self._streams.close(stream.id) is None:
            return
        self.writer.drop(stream)
        stream.closed()
        self.transport.write(h2.rst_stream(stream.id, code))
        if not stream.remote_ended:
            self._streams.ignore(stream.id)
        self._close_if_done()

    def on_stream_failure(self, failure: StreamFailure) -> None:
        """Answer a stream error of the peer with RST_STREAM."""
        self._flood.charge()
        self._abort(failure.stream_id)
        self._streams.ignore(failure.stream_id)
        self._reply(h2.rst_stream(failure.stream_id, failure.code))

    def _abort(self, stream_id: int) -> None:
        stream = self._streams.close(stream_id)
        if stream is not None:
            self.writer.drop(stream)
            stream.aborted()
        self._close_if_done()

    def _abort_streams(self) -> None:
        for stream in self._streams.close_all():
            self.writer.drop(stream)
            stream.aborted()

    def replace(self, stream: Stream) -> None:
        """Put `stream` in place of the open stream with the same identifier, whose answer must not have begun."""
        replaced = self._streams.by_id[stream.id]
        stream.send_window, stream.receive_window = replaced.send_window, replaced.receive_window
        stream.remote_ended = replaced.remote_ended
        self._streams.by_id[stream.id] = stream

    @property
    def open_streams(self) -> int:
        return len(self._streams.by_id)

    # -- the connection ends -----------------------------------------------------------------------------------------
    @property
    def draining(self) -> bool:
        """Whether the connection takes no new streams. Streams that only wait should then end."""
        return self._draining

    def drain(self) -> None:
        """Take no new streams, finish the open streams, then close. Two GOAWAYs ensure that no stream is lost (section 6.8)."""
        if self.closing or self._draining:
            return
        self._draining = True
        self.transport.write(h2.goaway(h2.MAX_WINDOW, ErrorCode.NO_ERROR) + h2.frame(h2.PING, 0, 0, bytes(8)))
        asyncio.get_running_loop().call_later(DRAIN_NOTICE_S, self._refuse_new_streams)

    def _refuse_new_streams(self) -> None:
        if self.closing or self._refusing:
            return
        self._refusing = True
        self.transport.write(h2.goaway(self._streams.last_id, ErrorCode.NO_ERROR))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._refusing and not self._streams.by_id and not self.closing:
            self.close()

    def fail(self, code: ErrorCode, message: str) -> None:
        """Send GOAWAY with the reason, and end the connection."""
        if self.closing:
            return
        log.debug("an HTTP/2 connection ends: %s: %s", code.name, message)
        self.transport.write(h2.goaway(self._streams.last_id, code, message))
        self._end()
        # Closing with unread data would reset the TCP connection, and the reason might not arrive. So read until the peer
        # closes the connection, or `tick` aborts it.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS cannot half-close
            self.transport.close()

    def close(self) -> None:
        """End the connection. Written data is still flushed. A second call aborts the connection."""
        if self.closing:
            self.transport.abort()
        else:
            self._end()
            self.transport.close()

    def idle_s(self) -> float | None:
        for stream in self._streams.by_id.values():
            if not stream.waits_for_peer():
                return None
        return self._keepalive.silent_s(time.monotonic())

    def close_idle(self) -> None:
        """Close a connection that only waits for its client. The client may open another connection."""
        if self.writer.paused:  # unsent bytes would keep the connection open
            self.transport.abort()
        elif not self.closing:
            self.transport.write(h2.goaway(self._streams.last_id, ErrorCode.NO_ERROR))
            self.close()

    def _end(self) -> None:
        self.closing = True
        self._since = time.monotonic()
        self._taken = taken_by_peer(self.transport)
        self._abort_streams()

"""The server's side of one HTTP/2 connection as an asyncio protocol (RFC 9113).

It reads frames, keeps streams and windows, and bounds what a peer can make it do. What a request means is the business
of the Stream subclass that `make_stream` returns.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from typing import Generic, cast

from serving.frontends.http2 import frames as h2
from serving.frontends.http2.allowance import Allowance, Share
from serving.frontends.http2.frames import ConnectionFailure, ErrorCode, Setting, StreamFailure
from serving.frontends.http2.headers import MAX_HEADER_LIST_SIZE, Head, HeaderDecoder, HeaderList
from serving.frontends.http2.keepalive import DEFAULTS, KEEPALIVE_PING, Keepalive, KeepaliveSettings
from serving.frontends.http2.reader import RECEIVED_FRAME_SIZE, FrameReader
from serving.frontends.http2.stream import Output, Stream
from serving.frontends.shared.client_limits import STANDARD, ClientTimeouts, ProgressWatch
from serving.resources.request_memory import RequestMemory

log = logging.getLogger(__name__)

MAX_CONCURRENT_STREAMS = 1024
STREAM_WINDOW = 16 << 20
CONNECTION_WINDOW = 1 << 30  # what has come is consumed at once: backpressure is on streams
_REPORT_AFTER = CONNECTION_WINDOW // 4

MAX_REMEMBERED = 1000
PREFACE_TIMEOUT_S = 10.0
STALLED_TIMEOUT_S = 60.0  # for a peer that reads nothing of what has been written
CLOSE_TIMEOUT_S = 5.0
DRAIN_NOTICE_S = 1.0

_OUR_SETTINGS = h2.settings(
    {
        Setting.MAX_CONCURRENT_STREAMS: MAX_CONCURRENT_STREAMS,
        Setting.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        Setting.MAX_FRAME_SIZE: RECEIVED_FRAME_SIZE,
        Setting.MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_SIZE,
    }
) + h2.window_update(0, CONNECTION_WINDOW - h2.DEFAULT_WINDOW)


class Connection(FrameReader, Generic[Head]):
    """Frames in, streams out. Every public method runs on the event loop's thread."""

    __slots__ = (  # CPython reads the attributes of an instance with more than 29 in its dict markedly slower
        "_allowance",
        "_answered_early",
        "_connections",
        "_decoder",
        "_draining",
        "_handlers",
        "_keepalive",
        "_last_stream_id",
        "_make_stream",
        "_progress",
        "_refusing",
        "_since",
        "_streams",
        "_unreported",
        "output",
        "share",
        "transport",
    )
    receive_window = STREAM_WINDOW

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
        self._streams: dict[int, Stream] = {}
        self._answered_early: set[int] = set()  # answered while the request was still coming: its rest is ignored
        self._last_stream_id = 0
        self._unreported = 0
        self._allowance = Allowance()
        self._keepalive = Keepalive(keepalive, time.monotonic())
        self._progress = ProgressWatch(timeouts, memory or RequestMemory())
        self.share = Share(MAX_CONCURRENT_STREAMS)
        self._draining = self._refusing = False
        self._since = time.monotonic()  # of the state that a timeout watches: preface, stalled, closing
        self._handlers = {
            h2.PRIORITY: self._on_priority,
            h2.RST_STREAM: self._on_rst_stream,
            h2.SETTINGS: self._on_settings,
            h2.PUSH_PROMISE: self._on_push_promise,
            h2.PING: self._on_ping,
            h2.GOAWAY: self._on_goaway,
            h2.WINDOW_UPDATE: self._on_window_update,
        }

    # -- asyncio -----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=1 << 20)
        # So that a peer whose machine has gone is noticed at last.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.output = Output(self.transport)
        self._connections.add(self)
        self.transport.write(_OUR_SETTINGS)

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        self._connections.discard(self)
        self._abort_streams()

    def pause_writing(self) -> None:
        self.output.paused = True
        self._since = time.monotonic()

    def resume_writing(self) -> None:
        self.output.paused = False
        self._allowance.unread = 0
        self.output.pump()

    # -- DATA --------------------------------------------------------------------------------------------------------
    def on_data(self, stream_id: int, flags: int, data: "bytes | memoryview") -> None:
        ends = bool(flags & h2.FLAG_END_STREAM)
        stream = self._receiving(stream_id, len(data), ends)
        if flags & h2.FLAG_PADDED:
            data = h2.without_padding(data)
        if not data and not ends:
            self._allowance.charge()
        if stream is not None:
            self._deliver(stream, data, ends)

    def on_part_begins(self, stream_id: int, length: int, ends: bool) -> None:
        self._receiving(stream_id, length, ends)

    def on_part(self, stream_id: int, data: memoryview, ends: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._deliver(stream, data, ends)

    def _receiving(self, stream_id: int, length: int, ends: bool) -> Stream | None:
        """The stream that a DATA frame of so many bytes is for, or None where it is to be ignored; counts the bytes."""
        self._unreported += length
        if self._unreported >= _REPORT_AFTER:
            self.transport.write(h2.window_update(0, self._unreported))
            self._unreported = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            self._ignore_data(stream_id, ends)
            return None
        if stream.remote_ended:
            raise StreamFailure(ErrorCode.STREAM_CLOSED, stream_id)
        stream.receive_window -= length
        if stream.receive_window < 0:
            raise StreamFailure(ErrorCode.FLOW_CONTROL_ERROR, stream_id)
        return stream

    def _ignore_data(self, stream_id: int, ends: bool) -> None:
        if not stream_id or stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"DATA on idle stream {stream_id}")
        if stream_id not in self._answered_early:
            raise StreamFailure(ErrorCode.STREAM_CLOSED, stream_id)
        if ends:
            self._answered_early.discard(stream_id)

    def _deliver(self, stream: Stream, data: "bytes | memoryview", ends: bool) -> None:
        if ends:
            stream.remote_ended = True
        else:
            self.replenish(stream)
        stream.receive(data, ends)

    def replenish(self, stream: Stream) -> None:
        """Open the stream's receive window again when half of it is used, if the stream takes more."""
        used = STREAM_WINDOW - stream.receive_window
        if used > STREAM_WINDOW // 2 and not stream.remote_ended and stream.wants_more():
            stream.receive_window = STREAM_WINDOW
            self.transport.write(h2.window_update(stream.id, used))

    # -- header blocks ------------------------------------------------------------------------------------
    def on_header_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """A whole header block: a new request, or the trailers of one."""
        if stream_id <= self._last_stream_id:
            self._trailers(stream_id, block, ends)
            return
        self._last_stream_id = stream_id
        head = self._decoder.decode(block)
        if self._refusing or len(self._streams) >= self.share.streams:
            raise StreamFailure(ErrorCode.REFUSED_STREAM, stream_id)
        stream = self._make_stream(self, stream_id, head)
        self._streams[stream_id] = stream
        self._allowance.opened += 1
        stream.remote_ended = ends
        stream.opened()
        if ends and not stream.ending:
            stream.receive(b"", True)

    def _trailers(self, stream_id: int, block: bytes, ends: bool) -> None:
        self._decoder.decode_fields(block)
        stream = self._streams.get(stream_id)
        if stream is None:
            if stream_id not in self._answered_early:
                raise ConnectionFailure(ErrorCode.STREAM_CLOSED, f"HEADERS on closed stream {stream_id}")
            return
        if stream.remote_ended:
            raise StreamFailure(ErrorCode.STREAM_CLOSED, stream_id)
        if not ends:
            raise StreamFailure(ErrorCode.PROTOCOL_ERROR, stream_id)
        self._deliver(stream, b"", True)

    # -- the other frames --------------------------------------------------------------------------------------------
    def on_frame(self, kind: int, stream_id: int, flags: int, payload: bytes) -> None:
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(stream_id, flags, payload)
        else:
            self._allowance.charge()  # an extension, ignored (section 5.5)

    def _on_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        """Priorities are deprecated and ignored (section 5.3.2)."""
        self._allowance.charge()
        if not stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFailure(ErrorCode.FRAME_SIZE_ERROR, stream_id)

    def _on_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM does not have 4 bytes")
        if not stream_id or stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on idle stream {stream_id}")
        self._allowance.charge()
        self._answered_early.discard(stream_id)
        self._remove(stream_id)

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        values = h2.read_settings(flags, payload)
        if flags & h2.FLAG_ACK:
            return
        self._allowance.charge()
        self.expects_settings = False
        for key, value in dict(values).items():  # the last one of each counts: a change walks over all streams
            if key == Setting.INITIAL_WINDOW_SIZE:
                self.output.set_initial_window(value, list(self._streams.values()))
            elif key == Setting.MAX_FRAME_SIZE:
                self.output.max_frame_size = value
        self._reply(h2.SETTINGS_ACK)

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "PING does not have 8 bytes")
        if not flags & h2.FLAG_ACK:
            self._allowance.charge()
            if self._keepalive.peer_pings_too_often(time.monotonic(), self._traffic(), bool(self._streams)):
                raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
            self._reply(h2.frame(h2.PING, h2.FLAG_ACK, 0, payload))
        elif payload == KEEPALIVE_PING:
            self._keepalive.answered(time.monotonic())
        elif self._draining:
            self._refuse_new()

    def _traffic(self) -> object:
        """Differs once a DATA or HEADERS frame has been sent or received. No window tells: the peer opens it again."""
        return self._last_stream_id, self._unreported, self.output.sent

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has fewer than 8 bytes")
        self._allowance.charge()
        self._draining = self._refusing = True
        self._close_if_done()

    def _on_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
        self._allowance.charge_update(self.output.sent)
        increment = h2.read_increment(stream_id, payload)
        if not stream_id:
            self.output.open_connection_window(increment)
        elif (stream := self._streams.get(stream_id)) is not None:
            self.output.open_stream_window(stream, increment)

    # -- what a peer may cost ----------------------------------------------------------------------------------------
    def _reply(self, data: bytes) -> None:
        """Answer a control frame, unless the peer reads none of the answers."""
        if self.output.paused:
            self._allowance.charge_unread(len(data))
        self.transport.write(data)

    def watch(self, now: float, elapsed: float) -> None:
        """Called every second or so: refill the allowance, give up on a peer that has stopped."""
        self._allowance.refill(elapsed)
        idle = now - self._since
        if self.closing:
            if idle > CLOSE_TIMEOUT_S:
                self.transport.abort()
        elif self.expects_settings:
            if idle > PREFACE_TIMEOUT_S:
                self.fail(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came")
        elif (self.output.paused and idle > STALLED_TIMEOUT_S) or self._keepalive.is_dead(now):
            self.transport.abort()
        else:
            self._keep_alive(now)
            self._progress.watch(self._streams.values(), now)

    def _keep_alive(self, now: float) -> None:
        keepalive = self._keepalive
        if keepalive.is_old(now, grace=True):
            self.close()
        elif keepalive.is_old(now):
            self.drain()
        elif keepalive.wants_ping(now, self._traffic(), bool(self._streams)):
            self.transport.write(h2.frame(h2.PING, 0, 0, KEEPALIVE_PING))

    # -- streams end -------------------------------------------------------------------------------------------------
    def ended(self, stream: Stream) -> None:
        """The stream's whole response has been sent."""
        if self._streams.pop(stream.id, None) is None:
            return
        stream.sent()
        self._allowance.earn()
        if not stream.remote_ended:
            self.transport.write(h2.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._ignore(stream.id)
        self._close_if_done()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Break off a stream from our side; `aborted` is not called."""
        if self._streams.pop(stream.id, None) is None:
            return
        self.output.drop(stream)
        stream.sent()
        self.transport.write(h2.rst_stream(stream.id, code))
        if not stream.remote_ended:
            self._ignore(stream.id)
        self._close_if_done()

    def _ignore(self, stream_id: int) -> None:
        if len(self._answered_early) >= MAX_REMEMBERED:
            self._answered_early.clear()
        self._answered_early.add(stream_id)

    def on_stream_failure(self, failure: StreamFailure) -> None:
        """RST_STREAM for what the peer did wrong on one stream."""
        self._allowance.charge()
        self._remove(failure.stream_id)
        self._ignore(failure.stream_id)
        self._reply(h2.rst_stream(failure.stream_id, failure.code))

    def _remove(self, stream_id: int) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            self.output.drop(stream)
            stream.aborted()
        self._close_if_done()

    def _abort_streams(self) -> None:
        streams = list(self._streams.values())
        self._streams.clear()
        for stream in streams:
            self.output.drop(stream)
            stream.aborted()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def draining(self) -> bool:
        """No new streams are taken, and those that only wait should end."""
        return self._draining

    # -- the connection ends -----------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Take no new streams, finish the open ones, then close (section 6.8: two GOAWAYs, so that none is lost)."""
        if self.closing or self._draining:
            return
        self._draining = True
        self.transport.write(h2.goaway(h2.MAX_WINDOW, ErrorCode.NO_ERROR) + h2.frame(h2.PING, 0, 0, bytes(8)))
        asyncio.get_running_loop().call_later(DRAIN_NOTICE_S, self._refuse_new)

    def _refuse_new(self) -> None:
        if self.closing or self._refusing:
            return
        self._refusing = True
        self.transport.write(h2.goaway(self._last_stream_id, ErrorCode.NO_ERROR))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._refusing and not self._streams and not self.closing:
            self.close()

    def fail(self, code: ErrorCode, message: str) -> None:
        """GOAWAY with the reason, then nothing more."""
        if self.closing:
            return
        log.debug("an HTTP/2 connection ends: %s: %s", code.name, message)
        self.transport.write(h2.goaway(self._last_stream_id, code, message))
        self._end()
        # Closing with unread data would reset the TCP connection, and the reason might not arrive: read until the peer
        # hangs up, or until `watch` closes the connection.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS cannot half-close
            self.transport.close()

    def close(self) -> None:
        """End the connection now; what has been written is still flushed."""
        if self.closing:
            self.transport.abort()
        else:
            self._end()
            self.transport.close()

    def _end(self) -> None:
        self.closing = True
        self._since = time.monotonic()
        self._abort_streams()

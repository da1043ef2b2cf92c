"""The server's side of one HTTP/2 connection as an asyncio protocol (RFC 9113).

It reads frames, keeps streams and windows, and bounds what a peer can make it do. What a request means is the business
of the Stream subclass that `make_stream` returns.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Generic, cast

from serving.frontends import http2_frames as h2
from serving.frontends.http2_frames import ConnectionFailure, ErrorCode, Setting, StreamFailure
from serving.frontends.http2_headers import MAX_HEADER_LIST_SIZE, Head, HeaderDecoder, HeaderList
from serving.frontends.http2_stream import Output, Stream

log = logging.getLogger(__name__)

MAX_CONCURRENT_STREAMS = 1024
RECEIVED_FRAME_SIZE = 256 * 1024
STREAM_WINDOW = 16 << 20
CONNECTION_WINDOW = 1 << 30  # what has come is consumed at once: backpressure is on streams
_REPORT_AFTER = CONNECTION_WINDOW // 4

# Frames that cost the peer nothing but make us work (RST_STREAM, PING, SETTINGS, PRIORITY, empty DATA, refused streams)
# draw on an allowance that time and answered requests refill (CVE-2023-44487, CVE-2019-9512 to 9518).
ALLOWANCE = 1000
ALLOWANCE_PER_SECOND = 200
MAX_CONTINUATIONS = 16
MAX_REMEMBERED = 1000
MAX_UNREAD_REPLIES = 64 * 1024  # bytes
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


class Connection(asyncio.Protocol, Generic[Head]):
    """Frames in, streams out. Every public method runs on the event loop's thread."""

    receive_window = STREAM_WINDOW

    def __init__(
        self,
        parse_head: Callable[[HeaderList], Head],
        make_stream: "Callable[[Connection[Head], int, Head], Stream]",
        connections: "set[Connection[Head]]",
    ) -> None:
        self._decoder = HeaderDecoder(parse_head)
        self._make_stream = make_stream
        self._connections = connections
        self._streams: dict[int, Stream] = {}
        self._answered_early: set[int] = set()  # answered while the request was still coming: its rest is ignored
        self._last_stream_id = 0
        self._rest = b""
        self._expects_preface = True
        self._expects_settings = True
        self._body_left = 0  # bytes of a DATA frame that is being received in pieces
        self._body_of = 0
        self._body_ends = False
        self._block: bytearray | None = None  # a header block that CONTINUATION frames complete
        self._block_of = 0
        self._block_ends = False
        self._continuations = 0
        self._unreported = 0
        self._unread_replies = 0  # bytes, since the transport paused
        self._allowance: float = ALLOWANCE
        self._draining = False
        self._refusing = False
        self._closing = False
        self._since = time.monotonic()  # of the state that a timeout watches: preface, stalled, closing
        self._handlers = {
            h2.HEADERS: self._on_headers,
            h2.PRIORITY: self._on_priority,
            h2.RST_STREAM: self._on_rst_stream,
            h2.SETTINGS: self._on_settings,
            h2.PUSH_PROMISE: self._on_push_promise,
            h2.PING: self._on_ping,
            h2.GOAWAY: self._on_goaway,
            h2.WINDOW_UPDATE: self._on_window_update,
            h2.CONTINUATION: self._on_continuation,
        }

    # -- asyncio -----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1 << 20)
        self.output = Output(self._transport)
        self._connections.add(self)
        self._transport.write(_OUR_SETTINGS)

    def connection_lost(self, error: Exception | None) -> None:
        self._closing = True
        self._connections.discard(self)
        self._abort_streams()

    def pause_writing(self) -> None:
        self.output.paused = True
        self._since = time.monotonic()

    def resume_writing(self) -> None:
        self.output.paused = False
        self._unread_replies = 0
        self.output.pump()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            self._parse(self._rest + data if self._rest else data)
        except ConnectionFailure as failure:
            self.fail(failure.code, failure.message)
        except Exception:
            log.exception("an HTTP/2 connection failed")
            self.fail(ErrorCode.INTERNAL_ERROR, "internal error")

    # -- frames in ---------------------------------------------------------------------------------------------------
    def _parse(self, data: bytes) -> None:
        """Handle every whole frame, and what there is of an unfinished DATA frame; keep the rest."""
        position = self._skip_preface(data) if self._expects_preface else 0
        end = len(data)
        while not self._closing:
            if self._body_left:
                position = self._continue_body(data, position)
            if end - position < h2.HEADER_SIZE:
                break
            high, low, kind, flags, stream_id = h2.FRAME_HEADER.unpack_from(data, position)
            start = position + h2.HEADER_SIZE
            stop = start + (high << 8 | low)
            stream_id &= h2.MAX_WINDOW
            if stop - start > RECEIVED_FRAME_SIZE:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"a frame is over {RECEIVED_FRAME_SIZE} bytes")
            if stop > end and (kind != h2.DATA or flags & h2.FLAG_PADDED):
                break
            if self._block is not None and (kind != h2.CONTINUATION or stream_id != self._block_of):
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a header block was interrupted")
            if self._expects_settings and (kind != h2.SETTINGS or flags & h2.FLAG_ACK):
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if stop > end:
                self._begin_body(stream_id, flags, stop - start)
                position = start
                continue
            try:
                if kind == h2.DATA:
                    self._on_data(stream_id, flags, data[start:stop])
                elif (handler := self._handlers.get(kind)) is not None:
                    handler(stream_id, flags, data[start:stop])
                else:
                    self._charge()
            except StreamFailure as failure:
                self._reset(failure)
            position = stop
        self._rest = data[position:]

    def _skip_preface(self, data: bytes) -> int:
        if not h2.PREFACE.startswith(data[: len(h2.PREFACE)]):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "expected HTTP/2; this port speaks gRPC")
        if len(data) < len(h2.PREFACE):
            return 0
        self._expects_preface = False
        return len(h2.PREFACE)

    # -- DATA --------------------------------------------------------------------------------------------------------
    def _on_data(self, stream_id: int, flags: int, data: bytes) -> None:
        ends = bool(flags & h2.FLAG_END_STREAM)
        stream = self._receiving(stream_id, len(data), ends)
        if flags & h2.FLAG_PADDED:
            data = _without_padding(data)
        if not data and not ends:
            self._charge()
        if stream is not None:
            self._deliver(stream, data, ends)

    def _begin_body(self, stream_id: int, flags: int, length: int) -> None:
        self._body_of = stream_id
        self._body_left = length
        self._body_ends = bool(flags & h2.FLAG_END_STREAM)
        try:
            self._receiving(stream_id, length, self._body_ends)
        except StreamFailure as failure:
            self._reset(failure)

    def _continue_body(self, data: bytes, position: int) -> int:
        """Deliver what has come of the unfinished DATA frame; returns where the next frame begins."""
        stop = min(len(data), position + self._body_left)
        self._body_left -= stop - position
        stream = self._streams.get(self._body_of)
        if stream is not None and stop > position:
            self._deliver(stream, memoryview(data)[position:stop], self._body_ends and not self._body_left)
        return stop

    def _receiving(self, stream_id: int, length: int, ends: bool) -> Stream | None:
        """The stream that a DATA frame of so many bytes is for, or None where it is to be ignored; counts the bytes."""
        self._unreported += length
        if self._unreported >= _REPORT_AFTER:
            self._transport.write(h2.window_update(0, self._unreported))
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
            self._transport.write(h2.window_update(stream.id, used))

    # -- HEADERS and CONTINUATION ------------------------------------------------------------------------------------
    def _on_headers(self, stream_id: int, flags: int, block: bytes) -> None:
        if not stream_id & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"a client cannot open stream {stream_id}")
        if flags & h2.FLAG_PADDED:
            block = _without_padding(block)
        if flags & h2.FLAG_PRIORITY:
            if len(block) < 5:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "HEADERS is too short for its priority")
            block = block[5:]
        ends = bool(flags & h2.FLAG_END_STREAM)
        if flags & h2.FLAG_END_HEADERS:
            self._open(stream_id, block, ends)
            return
        self._block = bytearray(block)
        self._block_of = stream_id
        self._block_ends = ends
        self._continuations = 0

    def _on_continuation(self, stream_id: int, flags: int, block: bytes) -> None:
        if self._block is None:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._block += block
        self._continuations += 1
        if len(self._block) > MAX_HEADER_LIST_SIZE or self._continuations > MAX_CONTINUATIONS:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too long")
        if flags & h2.FLAG_END_HEADERS:
            whole = bytes(self._block)
            self._block = None
            self._open(stream_id, whole, self._block_ends)

    def _open(self, stream_id: int, block: bytes, ends: bool) -> None:
        """A whole header block: a new request, or the trailers of one."""
        if len(block) > MAX_HEADER_LIST_SIZE:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too long")
        if stream_id <= self._last_stream_id:
            self._trailers(stream_id, block, ends)
            return
        self._last_stream_id = stream_id
        head = self._decoder.decode(block)
        if self._refusing or len(self._streams) >= MAX_CONCURRENT_STREAMS:
            raise StreamFailure(ErrorCode.REFUSED_STREAM, stream_id)
        stream = self._make_stream(self, stream_id, head)
        self._streams[stream_id] = stream
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
    def _on_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        """Priorities are deprecated and ignored (section 5.3.2)."""
        self._charge()
        if not stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFailure(ErrorCode.FRAME_SIZE_ERROR, stream_id)

    def _on_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM does not have 4 bytes")
        if not stream_id or stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"RST_STREAM on idle stream {stream_id}")
        self._charge()
        self._answered_early.discard(stream_id)
        self._remove(stream_id)

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & h2.FLAG_ACK and payload):
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS has a wrong length")
        if flags & h2.FLAG_ACK:
            return
        self._charge()
        self._expects_settings = False
        for offset in range(0, len(payload), 6):
            key = int.from_bytes(payload[offset : offset + 2], "big")
            self._apply(key, int.from_bytes(payload[offset + 2 : offset + 6], "big"))
        self._reply(h2.SETTINGS_ACK)

    def _apply(self, key: int, value: int) -> None:
        """One setting of the peer. Our header blocks use no dynamic table, so its size does not matter."""
        if key == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if key == Setting.INITIAL_WINDOW_SIZE:
            if value > h2.MAX_WINDOW:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is over 2^31-1")
            self.output.set_initial_window(value, list(self._streams.values()))
        if key == Setting.MAX_FRAME_SIZE:
            if not h2.DEFAULT_MAX_FRAME_SIZE <= value <= h2.LARGEST_MAX_FRAME_SIZE:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "MAX_FRAME_SIZE is out of range")
            self.output.max_frame_size = value

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "PING does not have 8 bytes")
        if not flags & h2.FLAG_ACK:
            self._charge()
            self._reply(h2.frame(h2.PING, h2.FLAG_ACK, 0, payload))
        elif self._draining:
            self._refuse_new()

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has fewer than 8 bytes")
        self._charge()
        self._draining = self._refusing = True
        self._close_if_done()

    def _on_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE does not have 4 bytes")
        if stream_id > self._last_stream_id:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"WINDOW_UPDATE on idle stream {stream_id}")
        increment = int.from_bytes(payload, "big") & h2.MAX_WINDOW
        if not increment:
            if stream_id:
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, stream_id)
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if not stream_id:
            self.output.open_connection_window(increment)
        elif (stream := self._streams.get(stream_id)) is not None:
            self.output.open_stream_window(stream, increment)

    # -- what a peer may cost ----------------------------------------------------------------------------------------
    def _charge(self) -> None:
        self._allowance -= 1
        if self._allowance < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that ask for nothing")

    def _reply(self, data: bytes) -> None:
        """Answer a control frame, unless the peer reads none of the answers."""
        if self.output.paused:
            self._unread_replies += len(data)
            if self._unread_replies > MAX_UNREAD_REPLIES:
                raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "the peer does not read")
        self._transport.write(data)

    def watch(self, now: float, elapsed: float) -> None:
        """Called every second or so: refill the allowance, give up on a peer that has stopped."""
        self._allowance = min(ALLOWANCE, self._allowance + ALLOWANCE_PER_SECOND * elapsed)
        idle = now - self._since
        if self._closing:
            if idle > CLOSE_TIMEOUT_S:
                self._transport.abort()
        elif self._expects_settings:
            if idle > PREFACE_TIMEOUT_S:
                self.fail(ErrorCode.SETTINGS_TIMEOUT, "no SETTINGS came")
        elif self.output.paused and idle > STALLED_TIMEOUT_S:
            self._transport.abort()

    # -- streams end -------------------------------------------------------------------------------------------------
    def ended(self, stream: Stream) -> None:
        """The stream's whole response has been sent."""
        if self._streams.pop(stream.id, None) is None:
            return
        self._allowance = min(ALLOWANCE, self._allowance + 1)
        if not stream.remote_ended:
            self._transport.write(h2.rst_stream(stream.id, ErrorCode.NO_ERROR))
            self._ignore(stream.id)
        self._close_if_done()

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Break off a stream from our side; `aborted` is not called."""
        if self._streams.pop(stream.id, None) is None:
            return
        self.output.drop(stream)
        self._transport.write(h2.rst_stream(stream.id, code))
        if not stream.remote_ended:
            self._ignore(stream.id)
        self._close_if_done()

    def _ignore(self, stream_id: int) -> None:
        if len(self._answered_early) >= MAX_REMEMBERED:
            self._answered_early.clear()
        self._answered_early.add(stream_id)

    def _reset(self, failure: StreamFailure) -> None:
        """RST_STREAM for what the peer did wrong on one stream."""
        self._charge()
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

    # -- the connection ends -----------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Take no new streams, finish the open ones, then close (section 6.8: two GOAWAYs, so that none is lost)."""
        if self._closing or self._draining:
            return
        self._draining = True
        self._transport.write(h2.goaway(h2.MAX_WINDOW, ErrorCode.NO_ERROR) + h2.frame(h2.PING, 0, 0, bytes(8)))
        asyncio.get_running_loop().call_later(DRAIN_NOTICE_S, self._refuse_new)

    def _refuse_new(self) -> None:
        if self._closing or self._refusing:
            return
        self._refusing = True
        self._transport.write(h2.goaway(self._last_stream_id, ErrorCode.NO_ERROR))
        self._close_if_done()

    def _close_if_done(self) -> None:
        if self._refusing and not self._streams:
            self.close()

    def fail(self, code: ErrorCode, message: str) -> None:
        """GOAWAY with the reason, then close."""
        if self._closing:
            return
        log.debug("an HTTP/2 connection ends: %s: %s", code.name, message)
        self._transport.write(h2.goaway(self._last_stream_id, code, message))
        self.close()

    def close(self) -> None:
        """End the connection now; what has been written is still flushed."""
        if not self._closing:
            self._closing = True
            self._since = time.monotonic()
            self._abort_streams()
            self._transport.close()


def _without_padding(payload: bytes) -> bytes:
    """The payload of a PADDED frame (section 6.1)."""
    if not payload:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "a padded frame has no pad length")
    if payload[0] >= len(payload):
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]

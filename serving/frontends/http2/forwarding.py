"""Forwards streams to another process, the origin: the client's frames are sent to it, and the frames of its answer return.

An `OriginConnection` is the client's side of HTTP/2 to the origin, where an ordinary `Connection` answers. Each connection of a
client has its own OriginConnection, so that the origin's limits for a connection apply to that client.
Flow control is forwarded: the client may send as much as the origin takes, so that no data waits in this process. On each
stream the origin may send at most ORIGIN_WINDOW bytes that the client has not taken yet. Both ends run the same program, so
neither waits for the other's settings.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from serving.core.errors import ServingError
from serving.frontends.http2 import frames as h2
from serving.frontends.http2.connection import STREAM_WINDOW, Connection
from serving.frontends.http2.frame_reader import RECEIVED_FRAME_SIZE, FrameReader, Pieces
from serving.frontends.http2.frames import ErrorCode, Setting, StreamFailure
from serving.frontends.http2.header_decompression import HeaderList
from serving.frontends.http2.headers import encode_headers
from serving.frontends.http2.stream import Stream

log = logging.getLogger(__name__)

# Opens a connection to the origin. Its argument is a factory of the connection's protocol.
Connect = Callable[[Callable[[], asyncio.BaseProtocol]], Awaitable[object]]

ORIGIN_WINDOW = 256 << 10  # bytes that the origin may send on a stream before the client has taken them
_CONNECTION_WINDOW = 1 << 30  # bytes; practically no limit, because each stream is limited
_BEGINNING = (
    h2.PREFACE
    + h2.settings({Setting.INITIAL_WINDOW_SIZE: ORIGIN_WINDOW, Setting.MAX_FRAME_SIZE: RECEIVED_FRAME_SIZE})
    + h2.window_update(0, _CONNECTION_WINDOW - h2.DEFAULT_WINDOW)
)


class OriginConnection(FrameReader):
    """The connection to the origin for the streams of one client. It is the companion of the client's connection, and ends with

    it. If the origin closes it while streams are open, the client's connection is closed, too.
    connect: connects an OriginConnection to the origin; raises OSError or ServingError if that fails.
    """

    __slots__ = ("_client", "_connecting", "_early", "_last_id", "_received", "_streams", "_transport")

    def __init__(self, client: Connection[Any], connect: Connect) -> None:
        super().__init__(client.scratch)
        self._expects_preface = False
        self._client = client
        self._streams: dict[int, ForwardedStream] = {}
        self._last_id = -1
        self._received = 0  # bytes of DATA since the last WINDOW_UPDATE of the connection
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = [_BEGINNING]  # bytes that wait for the transport
        self._connecting = asyncio.get_running_loop().create_task(self._connect(connect))

    @classmethod
    def of(cls, client: Connection[Any], connect: Connect) -> "OriginConnection":
        """Return the connection for this client. Create it if there is none, or if it is closed."""
        found = client.companion
        if not isinstance(found, cls) or found.closing:
            found = client.companion = cls(client, connect)
        return found

    async def _connect(self, connect: Connect) -> None:
        try:
            await connect(lambda: self)
        except (OSError, ServingError) as error:
            log.error("there is no connection for forwarded calls: %s", error)
            self.connection_lost(error)

    # -- asyncio -----------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1 << 20)
        self._transport.write(b"".join(self._early))
        self._early.clear()
        if self.closing:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        streams, self._streams = self._streams, {}
        if streams:
            self._client.close()
        else:
            self.resume_writing()

    def pause_writing(self) -> None:
        """Stop reading from the client, because the origin is too slow."""
        if not self._client.closing:
            self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._client.closing and not self._client.transport.is_reading():
            self._client.transport.resume_reading()

    def close(self) -> None:
        """Close the connection. The origin then aborts the streams under way."""
        self.closing = True
        self._streams.clear()
        if self._transport is not None:
            self._transport.close()

    # -- for the streams ---------------------------------------------------------------------------------------------
    def open(self, stream: "ForwardedStream", fields: HeaderList) -> int:
        """Open a stream at the origin with these request headers. Return its identifier. `stream` gets the answer."""
        self._last_id += 2
        self._streams[self._last_id] = stream
        block = encode_headers(fields)
        self.write(h2.frame(h2.HEADERS, h2.FLAG_END_HEADERS, self._last_id, block))
        return self._last_id

    def reset(self, stream_id: int) -> None:
        """Cancel a stream at the origin, unless it has ended."""
        if self._streams.pop(stream_id, None) is not None:
            self.write(h2.rst_stream(stream_id, ErrorCode.CANCEL))

    def write(self, data: bytes) -> None:
        if self._transport is None:
            self._early.append(data)
        elif not self.closing:
            self._transport.write(data)

    # -- frames of the origin ----------------------------------------------------------------------------------------
    def on_data(self, stream_id: int, flags: int, data: "bytes | memoryview") -> None:
        self.on_part_begins(stream_id, len(data), False)
        self.on_part(stream_id, cast(memoryview, data), False)

    def on_data_run(self, stream_id: int, pieces: Pieces) -> None:
        self.on_part_begins(stream_id, pieces.size, False)
        for piece in pieces:
            self.on_part(stream_id, piece.data, False)

    def on_part_begins(self, stream_id: int, length: int, ends: bool) -> None:
        self._received += length
        if self._received >= _CONNECTION_WINDOW // 4:
            self.write(h2.window_update(0, self._received))
            self._received = 0

    def on_part(self, stream_id: int, data: memoryview, ends: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.origin_sent(bytes(data))

    def on_header_block(self, stream_id: int, block: bytes, ends: bool) -> None:
        """Forward a header block unchanged, because the origin's blocks use no dynamic table. Trailers end an answer."""
        stream = self._streams.pop(stream_id, None) if ends else self._streams.get(stream_id)
        if stream is None:
            return
        stream.origin_ended = ends
        frame = h2.header_frame(block, ends)
        headers, trailers = (h2.NO_HEADERS, frame) if ends else (frame, h2.NO_HEADERS)
        stream.connection.writer.send(stream, headers, trailers=trailers)

    def on_window_update(self, stream_id: int, payload: bytes) -> None:
        if stream_id in self._streams:
            self._streams[stream_id].origin_takes(h2.read_increment(stream_id, payload))

    def on_frame(self, kind: int, stream_id: int, flags: int, payload: bytes) -> None:
        if kind == h2.RST_STREAM and stream_id in self._streams:
            stream = self._streams.pop(stream_id)
            stream.origin_ended = True
            stream.connection.reset(stream, ErrorCode(int.from_bytes(payload, "big")))
        elif kind == h2.SETTINGS and not flags & h2.FLAG_ACK:
            self.expects_settings = False
            self.write(h2.SETTINGS_ACK)
        elif kind == h2.PING and not flags & h2.FLAG_ACK:
            self.write(h2.frame(h2.PING, h2.FLAG_ACK, 0, payload))
        # GOAWAY is ignored: this server sends the client its own GOAWAY, and the origin refuses later streams.

    def on_stream_failure(self, failure: StreamFailure) -> None:
        self.fail(failure.code, "the origin broke a stream")

    def fail(self, code: ErrorCode, message: str) -> None:
        """Called when the origin has violated the protocol, which is a bug of this program."""
        log.error("a forwarded connection ends: %s: %s", code.name, message)
        self._client.close()


class ForwardedStream(Stream):
    """A client's stream that the origin answers. fields: the header fields that the origin gets."""

    __slots__ = (
        "_ends",
        "_fields",
        "_given",
        "_origin",
        "_origin_id",
        "_unsent",
        "_untaken",
        "_window",
        "origin_ended",
    )

    def __init__(self, connection: Connection[Any], stream_id: int, fields: HeaderList, connect: Connect) -> None:
        super().__init__(connection, stream_id)
        self._fields = fields
        self._origin = OriginConnection.of(connection, connect)
        self._origin_id = 0
        self.origin_ended = False  # True if the origin has answered, or its answer is not needed any more
        self._window = STREAM_WINDOW  # bytes that the origin takes now
        self._unsent = bytearray()  # bytes that the origin does not take yet
        self._ends = False  # whether the request ends after `_unsent`
        self._untaken = 0  # bytes of the answer that the client has not taken
        self._given = 0  # bytes that the client has taken, but not yet reported to the origin

    # -- from the client ---------------------------------------------------------------------------------------------
    def opened(self) -> None:
        self._origin_id = self._origin.open(self, self._fields)
        self._fields = []

    def receive(self, data: "bytes | memoryview", end: bool) -> None:
        if self.origin_ended or not (data or end):
            return
        if self._unsent or len(data) > min(self._window, RECEIVED_FRAME_SIZE):
            self._unsent += data
            self._ends = end
            self._send_unsent()
        else:
            self._send(data, end)

    def _send_unsent(self) -> None:
        while self._unsent and self._window > 0:
            size = min(len(self._unsent), self._window, RECEIVED_FRAME_SIZE)
            data = bytes(memoryview(self._unsent)[:size])
            del self._unsent[:size]
            self._send(data, self._ends and not self._unsent)

    def _send(self, data: "bytes | memoryview", end: bool) -> None:
        self._window -= len(data)
        header = h2.frame_header(len(data), h2.DATA, h2.FLAG_END_STREAM if end else 0, self._origin_id)
        self._origin.write(b"".join((header, data)))

    def wants_more(self) -> bool:
        """Return False, so that `connection.replenish` does nothing: the origin controls the client's window."""
        return False

    def waits_for_peer(self) -> bool:
        """Return whether the client must take a part of the answer, or may send more of the request. Whether the origin works
        on an answer is not known in this process."""
        return bool(self.outgoing) or not self.remote_ended

    def padded(self, size: int) -> None:
        self._let_send(size)

    def aborted(self) -> None:
        self.origin_ended = True
        self._origin.reset(self._origin_id)

    def drained(self) -> None:
        untaken, self._untaken = self._untaken, 0
        self._client_took(untaken)

    # -- from the origin ---------------------------------------------------------------------------------------------
    def origin_takes(self, increment: int) -> None:
        """Called when the origin takes `increment` more bytes."""
        self._window += increment
        self._send_unsent()
        self._let_send(increment)

    def origin_sent(self, data: bytes) -> None:
        """Forward a piece of the answer."""
        self.connection.writer.send(self, h2.NO_HEADERS, (data,), len(data))
        if self.outgoing:
            self._untaken += len(data)
        else:
            self._client_took(len(data))

    # -- flow control ------------------------------------------------------------------------------------------------
    def _let_send(self, increment: int) -> None:
        if not self.remote_ended:
            self.receive_window += increment
            self.connection.transport.write(h2.window_update(self.id, increment))

    def _client_took(self, size: int) -> None:
        self._given += size
        if self._given > ORIGIN_WINDOW // 2 and not self.origin_ended:
            self._origin.write(h2.window_update(self._origin_id, self._given))
            self._given = 0

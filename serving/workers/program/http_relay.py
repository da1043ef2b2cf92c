"""Forwards requests to the core over internal connections, and the bytes of the core's answers to the clients.

Each connection of a client has separate internal connections, one for each request under way. They are closed with the client's
connection, so that the core notices when a client disconnects. Requests are forwarded whole and decompressed. Answers are
parsed only to find their ends.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import cast
from urllib.parse import quote

import httptools

from serving.core.errors import unavailable
from serving.frontends.http1.exchange import Exchange, Pipeline
from serving.frontends.http1.message import HOP_BY_HOP
from serving.workers.program.core_client import CoreClient

_PIECE = 256 << 10  # bytes of a body that are written at a time
# Hop-by-hop headers, and headers that no longer apply to a received and decompressed body.
_LEFT_OUT = HOP_BY_HOP | {"content-encoding", "content-length", "expect"}


class HttpRelay:
    """The internal connections of all clients."""

    def __init__(self, core: CoreClient) -> None:
        self._core = core
        self._idle: dict[Pipeline, list[_CoreConnection]] = {}

    async def answer(self, exchange: Exchange) -> None:
        """Forward the request. Its answer comes later."""
        pipeline = exchange.pipeline
        idle = self._idle.get(pipeline)
        if idle is None:
            idle = self._idle[pipeline] = []
            pipeline.on_abandoned = self._client_gone
        if idle:
            connection = idle.pop()
        else:
            transport = pipeline.transport
            peer = transport.get_extra_info("peername") if transport is not None else None
            connection = await self._core.connect("http", peer, lambda: _CoreConnection(self))
        connection.begin(exchange)

    def keep(self, connection: "_CoreConnection", pipeline: Pipeline) -> None:
        """Keep a connection for the next request of the same client. Called when its request is answered."""
        idle = self._idle.get(pipeline)
        if idle is None:
            connection.close()
        else:
            idle.append(connection)
            connection.idle_in = idle

    def _client_gone(self, pipeline: Pipeline) -> None:
        for connection in self._idle.pop(pipeline, ()):
            connection.idle_in = None
            connection.close()


class _CoreConnection(asyncio.Protocol):
    """One internal connection, and its request under way. idle_in: the list of idle connections that it is in, or None."""

    def __init__(self, relay: HttpRelay) -> None:
        self.idle_in: list[_CoreConnection] | None = None
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._started = self._complete = self._keep_alive = self._paused = False
        self._unsent: deque[memoryview] = deque()  # unsent parts of the request's body
        self._core_is_slow = False

    def begin(self, exchange: Exchange) -> None:
        """Send the request."""
        self.idle_in = None
        if self._transport is None:
            raise unavailable("the server is ending")
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._started = self._complete = False
        exchange.start_relay(self._drained, self._abandoned)
        self._transport.write(_head(exchange))
        self._unsent = deque(memoryview(part) for part in (exchange.body, exchange.binary) if part)
        exchange.body = exchange.binary = b""
        self._send_body()

    def _send_body(self) -> None:
        """Send as many bytes as the core takes now. The core then counts them as request memory, and this worker no longer
        does."""
        unsent, exchange = self._unsent, self._exchange
        while unsent and self._transport is not None and not self._core_is_slow:
            piece, rest = unsent[0][:_PIECE], unsent[0][_PIECE:]
            self._transport.write(piece)
            if rest:
                unsent[0] = rest
            else:
                unsent.popleft()
            if exchange is not None and exchange.memory_taken:
                exchange.give(min(len(piece), exchange.memory_taken) if unsent else exchange.memory_taken)

    def pause_writing(self) -> None:
        self._core_is_slow = True

    def resume_writing(self) -> None:
        self._core_is_slow = False
        self._send_body()

    def close(self) -> None:
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()

    # -- the answer --------------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or self._transport is None:
            return
        self._started = True
        self._parser.feed_data(data)
        if self._complete:
            self._end(exchange, data)
            return
        exchange.write(data)
        if (exchange.chunks or exchange.pipeline.write_paused) and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def on_headers_complete(self) -> None:
        self._keep_alive = self._parser.should_keep_alive()  # llhttp forgets it when a message without a body ends
        if self._exchange is not None and self._exchange.head.method == "HEAD":
            self._complete = True  # an answer to HEAD has no body, whatever its Content-Length

    def on_message_complete(self) -> None:
        self._complete = True

    def _end(self, exchange: Exchange, data: bytes) -> None:
        self._exchange = None
        keep = self._keep_alive and not self._unsent
        pipeline = exchange.pipeline
        if not keep:
            pipeline.closing = True
        exchange.chunks.append(data)
        exchange.end()
        if keep and self._transport is not None:
            self._relay.keep(self, pipeline)
        else:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._unsent.clear()
        if self.idle_in is not None and self in self.idle_in:
            self.idle_in.remove(self)
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        exchange.on_abandoned = None
        if not self._started:
            exchange.fail(unavailable("the server did not take this request: try again"))
        elif exchange.head.http_1_0:  # an answer without a length ends with the connection
            exchange.pipeline.closing = True
            exchange.end()
        elif exchange.pipeline.transport is not None:
            exchange.pipeline.transport.abort()

    # -- the client --------------------------------------------------------------------------------------------------
    def _drained(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _abandoned(self, exchange: Exchange) -> None:
        self._exchange = None
        self.close()


def _head(exchange: Exchange) -> bytes:
    return "".join(_head_lines(exchange)).encode("latin-1", "replace")


def _head_lines(exchange: Exchange) -> Iterator[str]:
    head = exchange.head
    target = "*" if head.path == "*" else quote(head.path)
    if head.query:
        target += f"?{head.query}"
    yield f"{head.method} {target} HTTP/1.{'0' if head.http_1_0 else '1'}\r\n"
    for name, value in head.as_sent():
        if name.lower() not in _LEFT_OUT:
            yield f"{name}: {value}\r\n"
    size = len(exchange.body) + len(exchange.binary)
    if size or "content-length" in head.headers or "transfer-encoding" in head.headers:
        yield f"Content-Length: {size}\r\n"
    closing = not head.keep_alive or exchange.pipeline.closes_after(exchange)
    yield "Connection: close\r\n" if closing else "Connection: keep-alive\r\n" if head.http_1_0 else ""
    yield "\r\n"

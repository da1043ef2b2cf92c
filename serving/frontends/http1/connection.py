"""One client's connection: splits the received bytes into requests, dispatches them, and enforces the time limits.

The connection is an asyncio.BufferedProtocol: a large body is received directly into its own buffer, and small reads share one
buffer. This module finds the end of a head, and httptools parses it. The Pipeline writes the answers.
"""

import asyncio
import time
from collections.abc import Awaitable
from math import inf
from typing import cast

from mypy_extensions import mypyc_attr

from serving.core.errors import Exhausted, ServingError
from serving.frontends.http1.body import IncomingBody, decompress, split_body, too_large
from serving.frontends.http1.context import Context
from serving.frontends.http1.exchange import NO_ROUTE, Exchange, Pipeline, RouteMatch
from serving.frontends.http1.message import UNKNOWN_HEAD, Chunk, Head, HttpError, Reply
from serving.frontends.http1.routes import RouteTable
from serving.frontends.shared import open_connections
from serving.frontends.shared.client_limits import MAKE_ROOM_S, SCARCE, TAKEN, Awaited, taken_by_peer, with_jitter
from serving.resources.request_memory import COUNTED_FROM, ConnectionMemory

MAX_HEAD = 16 << 10  # bytes
MAX_PIPELINED = 32  # requests of one connection under way at the same time; further requests are not read yet
# Bytes that are read and ignored after the last request of a connection, because old clients send a few.
MAX_SURPLUS = 16 << 10
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UNKNOWN = b"", UNKNOWN_HEAD, NO_ROUTE  # the value of `_last` before the first head


class Connections:
    """The open connections of a listener, and the clock of their time limits."""

    def __init__(self) -> None:
        self.tick = 0  # seconds, counted while connections are open
        self._open: set[Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._draining = False
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: "Connection") -> None:
        self._open.add(connection)
        self._empty.clear()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(1.0, self._sweep)
        if self._draining:  # the connection was accepted before `drain`, and its handshake has just ended
            connection.drain()

    def discard(self, connection: "Connection") -> None:
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def drain(self) -> None:
        self._draining = True
        for connection in list(self._open):
            connection.drain()

    def abort(self) -> None:
        for connection in list(self._open):
            connection.abort()

    async def all_closed(self) -> None:
        await self._empty.wait()

    def _sweep(self) -> None:
        self.tick += 1
        for connection in list(self._open):
            connection.sweep(self.tick)
        self._timer = asyncio.get_running_loop().call_later(1.0, self._sweep) if self._open else None


@mypyc_attr(allow_interpreted_subclasses=True)
class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. Used on the event loop's thread."""

    def __init__(self, context: Context, routes: RouteTable, connections: Connections) -> None:
        self._context = context
        self._routes = routes
        self._connections = connections
        self._pipeline = Pipeline(context, self._all_answered)
        self._pending = b""  # received bytes: part of a head, or requests that may not start yet
        self._consumed = 0  # bytes of `_pending` that are already processed
        self._counted = 0  # bytes of `_pending` that are counted as request memory
        self._surplus = 0  # bytes that were received and ignored after the last request
        self._searched = 0  # bytes of an incomplete head that were already searched for its end
        self._last = UNKNOWN  # the last head as bytes and parsed, and its route: clients repeat heads
        self._incoming: IncomingBody | None = None  # the body that is being received
        self._incoming_route = NO_ROUTE
        self._memory_taken = 0  # bytes of request memory that the incoming request holds
        self._began_ns = 0  # when the first part of a request in several parts came, in monotonic ns
        self._draining = (
            False  # True when the server shuts down, or the connection is old: the next request is the last
        )
        self._old_at = inf  # tick at which the connection is old
        self._discarding = False  # True after a request was refused: further bytes are ignored
        self._consuming = False
        self._reading = True
        self._since = 0  # tick when the current phase began
        self._taken = 0  # `taken_by_peer` when a phase began in which the client must take answers
        self._received = 0  # received bytes of the body when the current period of its time limit began

    # -- transport -------------------------------------------------------------------------------------------------
    @property
    def transport(self) -> asyncio.Transport | None:
        return self._pipeline.transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pipeline = self._pipeline
        pipeline.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        pipeline.memory = ConnectionMemory(self._context.memory, str(peer[0]) if peer else "")
        self._since = tick = self._connections.tick
        max_age_s = self._context.limits.max_age_s
        if max_age_s:
            self._old_at = tick + with_jitter(max_age_s)
        self._connections.add(self)
        open_connections.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._pipeline.abandon()
        self._drop_body()
        self._connections.discard(self)
        open_connections.closed(self)

    def pause_writing(self) -> None:
        self._pipeline.write_paused = True
        self._mark_taken(self._connections.tick)
        self._set_reading()
        self._count_unread()

    def resume_writing(self) -> None:
        self._since = self._connections.tick  # restarts the timeouts, because reading was paused
        self._pipeline.writing_resumed()
        self._resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        incoming = self._incoming
        return self._context.read_view if incoming is None or incoming.buffer is None else incoming.free()

    def buffer_updated(self, count: int) -> None:
        if self._discarding:
            return
        incoming = self._incoming
        if incoming is not None and incoming.buffer is not None:
            self._received_body(incoming, count)
            return
        data = bytes(self._context.read_view[:count])
        if self._pending:
            data = self._pending = self._pending[self._consumed :] + data
            self._consumed = 0
        self._consume(data, 0)

    def _received_body(self, incoming: IncomingBody, count: int) -> None:
        incoming.filled(count)
        try:
            self._take_memory(count)
        except Exhausted as error:
            self._refuse(error)
            return
        if incoming.done:
            self._body_complete(incoming)
            self._set_reading()

    # -- framing ---------------------------------------------------------------------------------------------------
    def _consume(self, data: bytes, position: int) -> None:
        """Process the complete requests in data[position:], and keep the rest in `_pending`."""
        end = len(data)
        pipeline = self._pipeline
        self._consuming = True
        try:
            while position < end:
                if (pipeline.exchanges or pipeline.write_paused or pipeline.closing) and self._blocked():
                    break
                taken = self._take(data, position, end)
                if taken == position:
                    break
                position = taken
        except (HttpError, Exhausted) as error:
            self._refuse(error)
            return
        finally:
            self._consuming = False
        if self._discarding:
            return
        if position < end and pipeline.transport is not None:
            self._keep(data, position)
        elif self._pending:
            self._forget_pending()
        if not self._reading or pipeline.write_paused or len(pipeline.exchanges) >= MAX_PIPELINED:
            self._set_reading()

    def _keep(self, data: bytes, position: int) -> None:
        """Keep bytes that cannot be processed yet, and drop bytes after the last request."""
        if self._pipeline.closing and self._incoming is None:
            self._surplus += len(data) - position
            self._forget_pending()
            self._set_reading()
            return
        if data is self._pending:
            self._consumed = position
        else:
            self._pending = data[position:]
        size = len(self._pending)
        if size > COUNTED_FROM:
            try:
                self._pipeline.memory.take(size - self._counted)
                self._counted = size
            except Exhausted as error:
                self._refuse(error)

    def _forget_pending(self) -> None:
        self._pending = b""
        self._consumed = self._searched = 0
        if self._counted:
            self._pipeline.memory.give(self._counted)
            self._counted = 0

    def _take(self, data: bytes, position: int, end: int) -> int:
        """Process one request, or a piece of a body. Return the position after it."""
        if self._incoming is not None:
            return position + self._feed(self._incoming, memoryview(data)[position:])
        known, head, route = self._last
        stop = position + len(known)
        if not known or data[position:stop] != known:
            stop = data.find(b"\r\n\r\n", position + self._searched) + 4
            if stop < 4 or stop - position > MAX_HEAD + 4:
                self._wait_for_head(end - position)
                return position
            known = data[position:stop]
            head, route = self._routes.find(known)
            self._last = known, head, route
        self._searched = 0
        length = head.content_length
        if length < 0 or length > end - stop or length > route.max_body:
            self._check(head, route, length < 0 or length > end - stop)
            if self._discarding:
                return end
            return stop + self._begin_body(head, route, memoryview(data)[stop:])
        if length > COUNTED_FROM:
            self._take_memory(length)
        end = stop + length
        if head.header_length is None:
            self._dispatch(head, route, data[stop:end], b"")
        else:
            split = stop + head.header_length
            if split > end:  # the handler refuses it
                split = end
            self._dispatch(head, route, data[stop:split], data[split:end])
        return end

    def _wait_for_head(self, received: int) -> None:
        """Wait for the rest of a head. received: the received bytes of the head. Raises HttpError if the head is too long."""
        if received > MAX_HEAD:
            raise HttpError(431, f"expected a request head of at most {MAX_HEAD} bytes")
        if not self._began_ns:
            self._since = self._connections.tick
            self._began_ns = time.monotonic_ns()
        self._searched = max(received - 3, 0)

    def _check(self, head: Head, route: RouteMatch, incomplete: bool) -> None:
        """Refuse a request before its body is read, if that is known from its head. incomplete: whether the body has not come
        yet. If it has come and is not too large, `_dispatch` refuses the request, and the connection stays open."""
        try:
            if head.content_length > route.max_body:
                raise too_large(route.max_body)
            if incomplete and route.refusal is not None:
                raise route.refusal()
            if incomplete and not self._context.authoriser.open:
                self._authorise(head, route)
        except (HttpError, ServingError) as error:
            self._refuse(error, head, route)

    def _authorise(self, head: Head, route: RouteMatch) -> None:
        self._context.authoriser.check(route.group, head.headers, route.params.get("model"))

    def _begin_body(self, head: Head, route: RouteMatch, received: memoryview) -> int:
        """Begin to receive a body. received: the bytes that have come after the head. Return how many of them were taken."""
        transport = self._pipeline.transport
        self._since = self._connections.tick
        self._received = 0
        self._began_ns = self._began_ns or time.monotonic_ns()
        self._incoming = incoming = IncomingBody(head, route.max_body)
        self._incoming_route = route
        taken = 0 if incoming.buffer is None else self._feed(incoming, received)
        if head.expects_continue and not len(received) and not self._pipeline.exchanges and transport is not None:
            transport.write(CONTINUE)
        return taken

    def _feed(self, incoming: IncomingBody, view: memoryview) -> int:
        known = incoming.received
        taken = incoming.feed(view)
        self._take_memory(incoming.received - known)
        if incoming.done:
            self._body_complete(incoming)
        return taken

    def _body_complete(self, incoming: IncomingBody) -> None:
        route, self._incoming, self._incoming_route = self._incoming_route, None, NO_ROUTE
        self._dispatch(incoming.head, route, *incoming.parts())

    def _take_memory(self, size: int) -> None:
        """Count received bytes as request memory. Raises Exhausted if there is too little."""
        self._pipeline.memory.take(size)
        self._memory_taken += size

    def _drop_body(self) -> None:
        """Drop the received part of a request, and release its memory."""
        self._incoming, self._incoming_route = None, NO_ROUTE
        self._forget_pending()
        self._pipeline.memory.give(self._memory_taken)
        self._memory_taken = 0

    # -- requests --------------------------------------------------------------------------------------------------
    def _dispatch(self, head: Head, route: RouteMatch, body: Chunk, binary: Chunk) -> None:
        pipeline = self._pipeline
        exchange = Exchange(pipeline, head, route, body, binary)
        if self._began_ns or self._memory_taken:
            exchange.began_ns, exchange.memory_taken = self._began_ns, self._memory_taken
            self._began_ns = self._memory_taken = 0
        if self._context.access is not None and not exchange.began_ns:
            exchange.began_ns = time.monotonic_ns()
        pipeline.exchanges.append(exchange)
        if self._draining or not head.keep_alive:
            pipeline.closing = True
        try:
            if route.refusal is not None:
                raise route.refusal()
            if not self._context.authoriser.open:
                self._authorise(head, route)
            if head.encoding and not route.encoded:
                exchange.task = asyncio.get_running_loop().create_task(_decompress(exchange))
                return
            assert route.handler is not None
            answer = route.handler(exchange)
            if answer is not None:
                _answer(exchange, answer)
        except Exception as error:
            exchange.fail(error)

    def _refuse(self, error: Exception, head: Head = UNKNOWN_HEAD, route: RouteMatch | None = None) -> None:
        """Answer a request with an error without reading the rest of it, and close the connection after this answer. It stays
        half-closed for Limits.linger_s, so that a client that still sends can read the answer."""
        pipeline = self._pipeline
        self._discarding = True
        pipeline.closing = True
        began_ns, self._began_ns = self._began_ns, 0
        self._drop_body()
        self._since = self._connections.tick
        exchange = Exchange(pipeline, head, route or self._routes.unknown, b"")
        exchange.began_ns = began_ns
        pipeline.exchanges.append(exchange)
        exchange.fail(error)
        self._set_reading()

    def _all_answered(self) -> None:
        """Close the connection if its last request is answered, else continue to read. Called when the pipeline is empty."""
        transport = self._pipeline.transport
        if transport is None:
            return
        self._since = self._connections.tick
        if self._pipeline.closing and self._incoming is None:
            if self._discarding or self._surplus or self._pending:
                self._linger(transport)
            else:
                transport.close()
            return
        incoming = self._incoming
        if incoming is not None and incoming.head.expects_continue and not incoming.received:
            transport.write(CONTINUE)  # `_begin_body` could not send it, because earlier answers were under way
        if (self._pending or not self._reading) and not self._consuming:
            self._resume()

    def _linger(self, transport: asyncio.Transport) -> None:
        """Half-close the connection, and read and ignore bytes for a while. A close with unread data would reset the
        connection, and the client might lose the answer."""
        self._discarding = True
        if transport.can_write_eof():
            transport.write_eof()
            self._set_reading()
        else:  # TLS cannot half-close
            transport.close()

    # -- flow ------------------------------------------------------------------------------------------------------
    def _blocked(self) -> bool:
        """Return whether no further request may start now."""
        pipeline = self._pipeline
        if pipeline.write_paused or len(pipeline.exchanges) >= MAX_PIPELINED:
            return True
        return pipeline.closing and self._incoming is None

    def _set_reading(self) -> None:
        pipeline = self._pipeline
        transport = pipeline.transport
        if transport is None or transport.is_closing():
            return
        under_way = len(pipeline.exchanges)
        full = under_way > 0 if self._discarding else under_way >= MAX_PIPELINED or self._surplus > MAX_SURPLUS
        wanted = not (full or pipeline.write_paused)
        if wanted != self._reading:
            self._reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()

    def _resume(self) -> None:
        if self._pending and not self._blocked():
            self._consume(self._pending, self._consumed)
        self._set_reading()

    # -- time and end ----------------------------------------------------------------------------------------------
    def sweep(self, tick: int) -> None:
        """Close the connection if a time limit has passed. Called once a second."""
        age = tick - self._since
        limits = self._context.limits
        pipeline = self._pipeline
        if tick >= self._old_at and not self._draining:
            self._grow_old(tick)
        if pipeline.keeps_behind_stream() and pipeline.memory.must_make_room:
            self.abort()
        elif pipeline.write_paused:
            self._sweep_unread(tick, age)
        elif pipeline.transport is not None and pipeline.transport.is_closing():
            self._sweep_closing(pipeline.transport, tick, age)
        elif self._discarding:
            if age > limits.linger_s and not pipeline.exchanges:
                self.abort()
        elif self._incoming is not None:
            self._sweep_body(self._incoming.received, tick, age)
        elif self._pending and not pipeline.exchanges:
            if age > limits.head_s:
                self._refuse(HttpError(408, "the request head did not arrive in time"))
        elif not pipeline.exchanges and age > self._idle_limit() and pipeline.transport is not None:
            pipeline.transport.close()

    def _grow_old(self, tick: int) -> None:
        """Let the next answer say that the connection closes. Without a next request it closes after Limits.leaving_s."""
        self._draining = True
        if not self._pipeline.exchanges and self._incoming is None and not self._pending:
            self._since = tick

    def _sweep_unread(self, tick: int, age: int) -> None:
        """Abort the connection if its client takes fewer than TAKEN bytes in the time limit, which is shorter while other
        clients need memory."""
        transport = self._pipeline.transport
        if transport is None:
            return
        if taken_by_peer(transport) - self._taken >= TAKEN:
            self._mark_taken(tick)
        elif age > (MAKE_ROOM_S if self._pipeline.memory.must_make_room else self._context.limits.stalled_s):
            transport.abort()
            return
        self._count_unread()

    def _sweep_closing(self, transport: asyncio.Transport, tick: int, age: int) -> None:
        """Abort a TLS connection if its client neither takes the rest of the answer nor confirms the closure."""
        if age > self._context.limits.linger_s and not transport.can_write_eof():
            if taken_by_peer(transport) > self._taken:
                self._mark_taken(tick)
            else:
                transport.abort()

    def _mark_taken(self, tick: int) -> None:
        transport = self._pipeline.transport
        self._since = tick
        self._taken = 0 if transport is None else taken_by_peer(transport)

    def _count_unread(self) -> None:
        try:
            self._pipeline.count_unread()
        except Exhausted:
            self.abort()

    def _sweep_body(self, received: int, tick: int, age: int) -> None:
        context = self._context
        if self._reading and (not context.limits.body_s or age <= context.limits.body_s):
            return
        owed = context.timeouts.owed(Awaited.REQUEST, context.memory)
        if self._reading and received - self._received < owed:
            self._refuse(HttpError(408, "the request body came too slowly: see --request-min-rate"))
        else:
            self._since, self._received = tick, received

    def _idle_limit(self) -> float:
        limits = self._context.limits
        return min(limits.idle_s, limits.leaving_s) if self._draining else limits.idle_s

    def idle_s(self) -> float | None:
        pipeline = self._pipeline
        if pipeline.exchanges and not pipeline.write_paused:
            return None
        idle_s = float(self._connections.tick - self._since)
        incoming = self._incoming
        if incoming is not None:
            owed = SCARCE * self._context.timeouts.bytes_per_s * idle_s
            return 0.0 if incoming.received - self._received >= owed else idle_s
        return idle_s

    def close_idle(self) -> None:
        pipeline = self._pipeline
        if pipeline.write_paused:  # unsent bytes would keep the connection open
            self.abort()
        elif pipeline.transport is not None:
            pipeline.transport.close()

    def drain(self) -> None:
        """Close the connection after the requests under way. As in Triton, an idle client may send one more request, whose
        answer says that the connection closes."""
        self._draining = True
        if self._pipeline.exchanges or self._incoming is not None:
            self._pipeline.closing = True
        elif not self._pending:
            self._since = self._connections.tick

    def abort(self) -> None:
        if self._pipeline.transport is not None:
            self._pipeline.transport.abort()


# -- answers of handlers -----------------------------------------------------------------------------------------------
def _answer(exchange: Exchange, answer: Reply | Awaitable[Reply | None]) -> None:
    """Send the answer that a handler has returned, or that its awaitable returns later."""
    if isinstance(answer, Reply):
        exchange.reply(answer)
    else:
        exchange.task = asyncio.get_running_loop().create_task(_await(exchange, answer))


async def _await(exchange: Exchange, answer: Awaitable[Reply | None]) -> None:
    try:
        reply = await answer
        if reply is not None:
            exchange.reply(reply)
    except Exception as error:
        exchange.fail(error)


async def _decompress(exchange: Exchange) -> None:
    """Decompress the body of an exchange, then call the handler."""
    head = exchange.head
    encoding = head.encoding
    try:
        if encoding != "identity":
            packed = b"".join((exchange.body, exchange.binary)) if exchange.binary else exchange.body
            limit, memory = exchange.route.max_body, exchange.pipeline.context.memory
            body = await decompress(packed, encoding, limit, exchange, memory)
            exchange.body, exchange.binary = split_body(head, body)
        exchange.task = None
        assert exchange.route.handler is not None
        answer = exchange.route.handler(exchange)
        if answer is not None:
            _answer(exchange, answer)
    except Exception as error:
        exchange.fail(error)

"""One client's connection: framing, limits, back-pressure, and answers in the order of the requests.

The connection is an asyncio.BufferedProtocol, so that a large body is received straight into its own buffer and small
reads share one scratch buffer. Heads are found here and parsed by httptools; equal heads are parsed once (HeadCache).
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, cast

import numpy as np

from serving.core.errors import Exhausted, ServingError
from serving.frontends.http1.body import ChunkedBody, decompress, too_large
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import UNKNOWN_HEAD, Chunk, Head, HttpError, Reply
from serving.frontends.shared.large_write import write_large
from serving.frontends.shared.patience import Turn
from serving.resources.request_memory import COUNTED_FROM

if TYPE_CHECKING:
    from serving.frontends.http1.listener import Listener

MAX_HEAD = 16 << 10
MAX_PIPELINED = 32  # requests of one connection under way at once; further ones wait unread
JOIN_BELOW = 64 << 10  # smaller answers are joined and written by one call
ALIGNMENT = 64  # of the binary part of a large body, so that tensors can be views of it
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(asyncio.BufferedProtocol):
    """See the module's docstring. All methods run on the loop's thread."""

    # Bytes of the listener's memory for requests whose answers the client has not taken yet. Of the class until there are
    # any: instances of 30 attributes are slower to read.
    untaken = 0

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.closing = False  # after the exchanges under way, close
        self._leaving = False  # the server shuts down: the next request is the last
        self.began_ns = 0  # when the first part came of a request that did not come at once (monotonic)
        self._transport: asyncio.Transport | None = None
        self._exchanges: deque[Exchange] = deque()
        self._pending = bytearray()  # received: part of a head, or requests beyond MAX_PIPELINED
        self._consumed = 0  # bytes of it that have been taken
        self._searched = 0  # bytes of an unfinished head in which its end was looked for
        self._head: Head | None = None  # its body is being received
        self._body: memoryview | None = None  # where the body goes
        self._filled = 0
        self._taken = 0  # bytes of the listener's memory that the body being received takes
        self._chunked: ChunkedBody | None = None
        self._discarding = False  # refused: what still comes is not looked at
        self._consuming = False
        self._write_paused = False
        self._reading = True
        self._since = 0  # tick of the listener when the current phase began
        self._backlog = 0
        self._received = 0  # bytes of the body when the current span of patience began

    # -- transport -------------------------------------------------------------------------------------------------
    @property
    def transport(self) -> asyncio.BaseTransport | None:
        return self._transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._since = self.listener.tick
        self.listener.opened(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.closing = True
        exchanges, self._exchanges = self._exchanges, deque()
        for exchange in exchanges:
            exchange.abandon()
        self.settle()
        self._drop_body()
        self.listener.closed(self)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._since = self.listener.tick
        self._set_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.settle()
        self._tell_drained()
        self._resume()

    def get_buffer(self, sizehint: int) -> memoryview:
        body = self._body
        return self.listener.scratch_view if body is None else body[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._discarding:
            return
        if self._body is not None:
            self._filled += count
            try:
                self._take_room(count)
            except Exhausted as error:
                self._refuse(error)
                return
            if self._filled == len(self._body):
                self._body_complete()
            return
        listener = self.listener
        pending = self._pending
        if pending:
            del pending[: self._consumed]
            self._consumed = 0
            pending += listener.scratch_view[:count]
            self._consume(pending, memoryview(pending), 0, len(pending))
        else:
            self._consume(listener.scratch, listener.scratch_view, 0, count)

    # -- framing ---------------------------------------------------------------------------------------------------
    def _consume(self, data: bytearray, view: memoryview, position: int, end: int) -> None:
        """Take whole requests from data[position:end]; what remains is kept in `_pending`, and not copied if it lies there."""
        self._consuming = True
        try:
            while position < end and not self._held():
                taken = self._take(data, view, position, end)
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
        if self._transport is not None and position < end:
            if data is self._pending:
                self._consumed = position
            else:
                self._pending = bytearray(view[position:end])
        elif self._pending:
            self._forget_pending()
        self._set_reading()

    def _forget_pending(self) -> None:
        self._pending = bytearray()
        self._consumed = self._searched = 0

    def _take(self, data: bytearray, view: memoryview, position: int, end: int) -> int:
        """Take one request, or a piece of a body; the position behind it."""
        if self._chunked is not None:
            known = len(self._chunked.data)
            position += self._chunked.feed(view[position:end])
            self._take_room(len(self._chunked.data) - known)
            if self._chunked.done:
                self._chunk_complete(self._chunked)
            return position
        stop = data.find(b"\r\n\r\n", position + max(self._searched - 3, 0), end)
        if stop < 0 or stop - position > MAX_HEAD:
            if end - position > MAX_HEAD:
                raise HttpError(431, f"expected a request head of at most {MAX_HEAD} bytes")
            if not self._searched:
                self._since = self.listener.tick
                self.began_ns = time.monotonic_ns()
            self._searched = end - position
            return position
        self._searched = 0
        stop += 4
        head = self.listener.head(bytes(view[position:stop]))
        length = head.content_length
        self._check(head, length > end - stop or length < 0)
        if self._discarding:
            return end
        if 0 <= length <= end - stop:
            if length > COUNTED_FROM:
                self._take_room(length)
            split = length if head.header_length is None else min(length, head.header_length)
            self._dispatch(head, bytes(view[stop : stop + split]), bytes(view[stop + split : stop + length]))
            return stop + length
        self._begin_body(head, view[stop:end])
        return stop if length < 0 else end

    def _check(self, head: Head, incomplete: bool) -> None:
        """Refuse before the body is read what will be refused anyway. Small refused bodies are read, to keep the
        connection: then the dispatch answers."""
        try:
            if head.content_length > head.max_body:
                raise too_large(head.max_body)
            if incomplete and head.refusal is not None:
                raise head.refusal
            if incomplete and not self.listener.authoriser.open:
                self.listener.authorise(head)
        except (HttpError, ServingError) as error:
            self._refuse(error, head)

    def _begin_body(self, head: Head, received: memoryview) -> None:
        self._head = head
        self._since = self.listener.tick
        self._received = 0
        self.began_ns = self.began_ns or time.monotonic_ns()
        self._filled = 0
        if head.content_length < 0:
            self._chunked = ChunkedBody(head.max_body)
        else:
            self._body = _body_buffer(head)
            self._filled = len(received)
            self._body[: self._filled] = received
            self._take_room(self._filled)
        if head.expects_continue and not len(received) and not self._exchanges and self._transport is not None:
            self._transport.write(CONTINUE)

    def _take_room(self, size: int) -> None:
        """Count bytes that have come; Exhausted where the server holds too many."""
        self.listener.memory.take(size)
        self._taken += size

    def _drop_body(self) -> None:
        """Forget what has come of a request."""
        self._head = self._body = self._chunked = None
        self._forget_pending()
        self.listener.memory.give(self._taken)
        self._taken = 0

    def _body_complete(self) -> None:
        head, body = self._head, self._body
        self._head = self._body = None
        if head is not None and body is not None:
            self._dispatch(head, *split_body(head, body))
        self._set_reading()

    def _chunk_complete(self, chunked: ChunkedBody) -> None:
        head, self._head, self._chunked = self._head, None, None
        if head is not None:
            self._dispatch(head, *split_body(head, memoryview(chunked.data)))

    # -- requests and answers --------------------------------------------------------------------------------------
    def _dispatch(self, head: Head, body: Chunk, binary: Chunk) -> None:
        exchange = Exchange(self, head, body, binary)
        exchange.taken, self._taken = self._taken, 0
        self.began_ns = 0
        self._exchanges.append(exchange)
        if not head.keep_alive or self._leaving:
            self.closing = True
        try:
            if head.refusal is not None:
                raise head.refusal
            if not self.listener.authoriser.open:
                self.listener.authorise(head)
            if "content-encoding" in head.headers:
                exchange.task = self.listener.loop.create_task(self._decompress(exchange))
                return
            self._handle(exchange)
        except Exception as error:
            exchange.fail(error)

    def _handle(self, exchange: Exchange) -> None:
        answer = exchange.head.handler(exchange)
        if type(answer) is Reply:
            exchange.reply(answer)
        elif answer is not None:
            exchange.task = self.listener.loop.create_task(self._await(exchange, answer))

    async def _await(self, exchange: Exchange, answer: Awaitable[Reply | None]) -> None:
        try:
            reply = await answer
            if reply is not None:
                exchange.reply(reply)
        except Exception as error:
            exchange.fail(error)

    async def _decompress(self, exchange: Exchange) -> None:
        encoding = exchange.head.headers["content-encoding"].strip().lower()
        try:
            if encoding != "identity":
                packed = b"".join((exchange.body, exchange.binary)) if exchange.binary else exchange.body
                whole = await decompress(packed, encoding, exchange.head.max_body, exchange, self.listener.memory)
                exchange.body, exchange.binary = split_body(exchange.head, whole)
            exchange.task = None
            self._handle(exchange)
        except Exception as error:
            exchange.fail(error)

    def flush(self) -> None:
        """Write what is ready, in the order of the requests."""
        exchanges = self._exchanges
        transport = self._transport
        if transport is None:
            return
        while exchanges:
            first = exchanges[0]
            if first.chunks:
                _write(transport, first.chunks)
                first.chunks = []
            if not first.done:
                self._tell_drained()
                return
            exchanges.popleft()
        self._since = self.listener.tick
        if self._discarding:
            if transport.can_write_eof():
                transport.write_eof()
            else:  # TLS cannot half-close
                transport.close()
        elif self.closing and self._head is None:
            transport.close()
        elif (self._pending or not self._reading) and not self._consuming:
            self._resume()

    def settle(self) -> None:
        """Give back the room of requests whose answers have left. Up to the transport's limit they count as having left."""
        if self.untaken and (
            self._transport is None or not (self._write_paused or any(one.done for one in self._exchanges))
        ):
            self.listener.memory.give(self.untaken)
            self.untaken = 0

    def _tell_drained(self) -> None:
        """All that the stream at the head of the line had to say is on its way."""
        if self._exchanges and not self._write_paused:
            on_drained = self._exchanges[0].on_drained
            if on_drained is not None:
                on_drained()

    def _refuse(self, error: Exception, head: Head = UNKNOWN_HEAD) -> None:
        """Answer a request that is not read to its end, behind the answers under way; then close. The client may still
        be sending: it gets a half-closed connection and LINGER_S, so that it can read the answer."""
        self._discarding = True
        self.closing = True
        self._drop_body()
        self._since = self.listener.tick
        exchange = Exchange(self, head, b"")
        self._exchanges.append(exchange)
        exchange.fail(error)

    # -- flow ------------------------------------------------------------------------------------------------------
    def _held(self) -> bool:
        """Whether no further request may start now."""
        return len(self._exchanges) >= MAX_PIPELINED or self._write_paused or (self.closing and self._head is None)

    def _set_reading(self) -> None:
        transport = self._transport
        if transport is None or self._discarding:
            return
        wanted = not (len(self._exchanges) >= MAX_PIPELINED or self._write_paused)
        if wanted != self._reading:
            self._reading = wanted
            (transport.resume_reading if wanted else transport.pause_reading)()

    def _resume(self) -> None:
        if self._pending and not self._held():
            self._consume(self._pending, memoryview(self._pending), self._consumed, len(self._pending))
        self._set_reading()

    def closes_after(self, exchange: Exchange) -> bool:
        return self.closing and self._exchanges[-1] is exchange

    def backlog(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- time and end ----------------------------------------------------------------------------------------------
    def sweep(self, tick: int) -> None:
        """Called by the listener once a second: close what waits for a client too long."""
        age = tick - self._since
        limits = self.listener.limits
        if self._write_paused:
            backlog = self.backlog()
            if backlog < self._backlog:
                self._since = tick
            elif age > limits.stalled_s:
                self.abort()
            self._backlog = backlog
        elif self._discarding:
            if age > limits.linger_s and not self._exchanges:
                self.abort()
        elif self._head is not None:
            self._sweep_body(tick, age)
        elif self._pending and not self._exchanges:
            if age > limits.head_s:
                self._refuse(HttpError(408, "the request head did not arrive in time"))
        elif not self._exchanges and age > self._idle_limit() and self._transport is not None:
            self._transport.close()

    def _sweep_body(self, tick: int, age: int) -> None:
        listener = self.listener
        received = self._filled if self._chunked is None else len(self._chunked.data)
        if self._reading and (not listener.limits.body_s or age <= listener.limits.body_s):
            return
        owed = listener.patience.owed(Turn.REQUEST, listener.memory)
        if self._reading and received - self._received < owed:
            self._refuse(HttpError(408, "the request body did not come on in time: see --request-min-rate"))
        else:
            self._since, self._received = tick, received

    def _idle_limit(self) -> float:
        limits = self.listener.limits
        return min(limits.idle_s, limits.leaving_s) if self._leaving else limits.idle_s

    def drain(self) -> None:
        """Close once the requests under way are answered. An idle connection has one more, as in Triton: its client may be
        about to send it, and cannot know that nobody listens; the answer says that the connection closes."""
        self._leaving = True
        if self._exchanges or self._head is not None:
            self.closing = True
        elif not self._pending:
            self._since = self.listener.tick

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _body_buffer(head: Head) -> memoryview:
    """Room for a large body, its binary part aligned. np.empty leaves the pages untouched: a length that is only claimed
    costs no memory."""
    shift = -(head.header_length or 0) % ALIGNMENT
    try:
        return np.empty(head.content_length + shift, np.uint8).data[shift:]
    except MemoryError:
        raise HttpError(503, f"the server has no room for a body of {head.content_length} bytes now") from None


def split_body(head: Head, whole: memoryview) -> tuple[memoryview, memoryview]:
    """The JSON part and the binary part, without copying."""
    split = len(whole) if head.header_length is None else head.header_length
    return whole[:split], whole[split:]


def _write(transport: asyncio.Transport, chunks: list[Chunk]) -> None:
    if len(chunks) == 1 and len(chunks[0]) < JOIN_BELOW:
        transport.write(chunks[0])
    elif sum(map(len, chunks)) < JOIN_BELOW:
        transport.write(b"".join(chunks))
    else:
        write_large(transport, chunks)

"""A request with its answer (Exchange), and all requests under way on one connection (Pipeline).

A handler gets an Exchange. It returns a Reply, an awaitable of a Reply, or None if it answers later: by `reply`, by `send`, or
by a stream (`start_stream`, `write`, `end`). The Pipeline writes the answers in the order of the requests.
Source: RFC 9112, section 9.3.2 (pipelining).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from serving.core.errors import Exhausted, ServingError
from serving.core.in_flight import InFlightRequest
from serving.frontends.http1.context import Context
from serving.frontends.http1.message import (
    Chunk,
    ErrorReply,
    Head,
    HttpError,
    Reply,
    connection_header,
    error_reply,
    status_line,
)
from serving.frontends.shared.large_write import write_large
from serving.resources.request_memory import COUNTED_FROM, ConnectionMemory

log = logging.getLogger(__name__)

CLIENT_GONE = 499  # the logged status of a request whose client has disconnected
JOIN_BELOW = 64 << 10  # bytes; smaller answers are joined and written by one call

HandlerResult = Reply | None | Awaitable[Reply | None]
Handler = Callable[["Exchange"], HandlerResult]


@dataclass
class RouteMatch:
    """The handler, or the refusal, for a request's path and method.

    group: the API group for the authoriser. params: the named segments of the path. max_body: the largest body, in bytes.
    encoded: whether the handler takes bodies in any Content-Encoding. error_reply: makes the answer for an error in the format
    of the path's protocol. refusal: creates a new error for each request: an error that is raised again would keep the frames
    of earlier requests.
    """

    max_body: int = 0
    error_reply: ErrorReply = error_reply
    handler: Handler | None = None
    group: str = ""
    params: dict[str, str] = field(default_factory=dict)
    refusal: Callable[[], HttpError] | None = None
    encoded: bool = False


NO_ROUTE = RouteMatch()


class Exchange:
    """One request and its answer."""

    __slots__ = (
        "began_ns",
        "binary",
        "body",
        "chunked",
        "chunks",
        "done",
        "head",
        "memory_taken",
        "on_abandoned",
        "on_drained",
        "pipeline",
        "requests",
        "route",
        "status",
        "task",
        "traced",
    )

    def __init__(self, pipeline: "Pipeline", head: Head, route: RouteMatch, body: Chunk, binary: Chunk = b"") -> None:
        """body: the body, or its first Inference-Header-Content-Length bytes. binary: the bytes after those."""
        self.pipeline = pipeline
        self.head = head
        self.route = route
        self.body = body
        self.binary = binary
        self.began_ns = 0  # when the first bytes came, in monotonic ns; 0 if the request came in one piece
        self.memory_taken = 0  # bytes of request memory that this request holds
        self.chunks: list[Chunk] = []  # parts of the encoded answer that wait for earlier answers
        self.done = False
        self.status = 0  # the status of a stream that has begun
        self.chunked = False  # True if the answer is sent in chunks
        self.on_drained: Callable[[], None] | None = None
        self.on_abandoned: Callable[[Exchange], None] | None = None
        self.requests: tuple[InFlightRequest, ...] = ()  # cancelled when the client disconnects
        self.task: asyncio.Task[None] | None = None
        self.traced = False  # True if a trace records when the answer is sent

    @property
    def backlog(self) -> int:
        """Bytes that this client has not taken yet."""
        return self.pipeline.backlog()

    def received(self) -> tuple[int, int]:
        """Return when the client began to send this request, and the present time, in monotonic ns."""
        now = time.monotonic_ns()
        return self.began_ns or now, now

    # -- an answer of known length ---------------------------------------------------------------------------------
    def reply(self, reply: Reply, standing: str | None = None) -> None:
        """Send the complete answer, unless one was sent. standing: header lines that replace the listener's lines."""
        if self.done:
            return
        pipeline = self.pipeline
        if reply.closes:
            pipeline.closing = True
        if standing is None:
            standing = pipeline.context.standing_headers(reply.status)
        self.send(reply.encode(self.head, pipeline.closes_after(self), standing))

    def send(self, chunks: list[Chunk]) -> None:
        """Send the complete encoded answer, unless one was sent or the client has disconnected."""
        if self.done:
            return
        self.chunks = chunks
        self.done = True
        if self.traced:
            self.sending()
        pipeline = self.pipeline
        access = pipeline.context.access
        if access is not None:
            access.answered(pipeline.transport, self.head, self.began_ns, int(bytes(chunks[0][9:12])))  # HTTP/1.1 200
        pipeline.flush()
        if self.chunks:
            self._keep()
        if self.memory_taken or pipeline.memory_until_sent:
            self._complete()
        if self.traced:
            self._tell_sent()
        self.requests = ()  # breaks a reference cycle, which would keep their tensors

    def fail(self, error: Exception) -> None:
        """Answer with the error, and cancel the requests. An unexpected error is logged."""
        if not isinstance(error, ServingError | HttpError):
            log.error("a request failed unexpectedly", exc_info=error)
        requests = self.requests
        self.reply(self.route.error_reply(error))
        self.requests = ()
        _cancel(requests)

    # -- a stream --------------------------------------------------------------------------------------------------
    def start_stream(
        self,
        content_type: str,
        status: int = 200,
        on_drained: Callable[[], None] | None = None,
        on_abandoned: Callable[["Exchange"], None] | None = None,
        start: str = "",
    ) -> None:
        """Begin an answer of unknown length. It is sent in chunks; in HTTP/1.0 it ends with the connection.

        on_drained: called when the client has taken all data written so far. on_abandoned: called when the client has
        disconnected. start: the status line and headers, if they are not those of an event stream.
        """
        self.on_drained, self.on_abandoned = on_drained, on_abandoned
        self.chunked = not self.head.http_1_0
        if not self.chunked:
            self.pipeline.closing = True
        if not start:
            start = f"{status_line(status)}Content-Type: {content_type}\r\nCache-Control: no-store\r\n"
        self.status = int(start[9:12])
        if self.chunked:
            start += "Transfer-Encoding: chunked\r\n"
        self.sending()
        closing = not self.chunked or self.pipeline.closes_after(self)
        self._add(f"{start}{connection_header(self.head, closing)}\r\n".encode())

    def start_relay(self, on_drained: Callable[[], None], on_abandoned: Callable[["Exchange"], None]) -> None:
        """Begin an answer that another process has encoded. `write` then sends data unchanged."""
        self.on_drained, self.on_abandoned = on_drained, on_abandoned

    def write(self, data: bytes) -> None:
        """Write a piece of a stream, which must not be empty."""
        self._add(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        """End the stream."""
        if self.chunked:
            self.chunks.append(b"0\r\n\r\n")
        self.done = True
        self.on_drained = self.on_abandoned = None
        pipeline = self.pipeline
        if pipeline.context.access is not None:
            pipeline.context.access.answered(pipeline.transport, self.head, self.began_ns, self.status)
        pipeline.flush()
        self._complete()
        self._tell_sent()
        self.cancel()

    def _add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.pipeline.flush()

    # -- memory ----------------------------------------------------------------------------------------------------
    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises Exhausted if there is too little memory."""
        self.pipeline.memory.take(size)
        self.memory_taken += size

    def give(self, size: int) -> None:
        """Release `size` bytes."""
        self.pipeline.memory.give(size)
        self.memory_taken -= size

    def _keep(self) -> None:
        """Count the bytes by which an answer that waits for earlier answers is larger than its request."""
        pipeline = self.pipeline
        more = sum(map(len, self.chunks)) - self.memory_taken
        if more > COUNTED_FROM and pipeline.transport is not None:
            try:
                self.take(more)
            except Exhausted:
                pipeline.transport.abort()

    def _complete(self) -> None:
        """Keep the request's memory counted until the client has taken the answer, which may be as large."""
        pipeline = self.pipeline
        pipeline.memory_until_sent += self.memory_taken
        self.memory_taken = 0
        pipeline.release_memory()

    # -- traces ----------------------------------------------------------------------------------------------------
    def sending(self) -> None:
        """Record in the traces that the answer is being sent. Also called before a thread compresses the answer."""
        for request in self.requests:
            if request.trace is not None:
                request.trace.sending()

    def _tell_sent(self) -> None:
        for request in self.requests:
            if request.trace is not None:
                request.trace.sent(self._unsent)

    def _unsent(self) -> bool:
        return self.pipeline.transport is not None and (bool(self.chunks) or self.backlog > 0)

    # -- the end ---------------------------------------------------------------------------------------------------
    def cancel(self) -> None:
        """Cancel the requests."""
        requests, self.requests = self.requests, ()
        _cancel(requests)

    def abandon(self) -> None:
        """Abandon the request and its answer. Called when the client has disconnected."""
        self.done = True  # set before the requests are cancelled, so that their answers are ignored
        if self.memory_taken:
            self.give(self.memory_taken)
        on_abandoned, self.on_abandoned, self.on_drained = self.on_abandoned, None, None
        self._tell_sent()
        self.cancel()
        if self.task is not None:
            self.task.cancel()
        if on_abandoned is not None:
            on_abandoned(self)


def _cancel(requests: tuple[InFlightRequest, ...]) -> None:
    for request in requests:
        if request.responder.flow is not None:
            request.responder.flow.close()
        request.cancel()


class Pipeline:
    """The exchanges under way on one connection. The answers are sent in the order of the requests.

    transport: the connection's transport, or None after the client has disconnected. closing: whether the connection closes
    after these exchanges.
    memory_until_sent: bytes of memory of the requests whose answers are complete but not sent yet.
    """

    __slots__ = (
        "_on_empty",
        "closing",
        "context",
        "exchanges",
        "memory",
        "memory_until_sent",
        "on_abandoned",
        "transport",
        "write_paused",
    )

    memory: ConnectionMemory  # set when the connection is made

    def __init__(self, context: Context, on_empty: Callable[[], None]) -> None:
        """on_empty: called whenever all answers have been written."""
        self.context = context
        self.transport: asyncio.Transport | None = None
        self.exchanges: deque[Exchange] = deque()
        self.closing = False
        self.write_paused = False  # True while the client reads too slowly
        self.memory_until_sent = 0
        self.on_abandoned: Callable[[Pipeline], None] | None = None  # called when the client has disconnected
        self._on_empty: Callable[[], None] | None = on_empty

    def closes_after(self, exchange: Exchange) -> bool:
        return self.closing and self.exchanges[-1] is exchange

    def backlog(self) -> int:
        """Return how many written bytes the client has not taken yet."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    def flush(self) -> None:
        exchanges = self.exchanges
        transport = self.transport
        if transport is None:
            return
        while exchanges:
            first = exchanges[0]
            chunks = first.chunks
            if chunks:
                first.chunks = []
                if len(chunks) == 1 and len(chunks[0]) < JOIN_BELOW:
                    transport.write(chunks[0])
                else:
                    _write(transport, chunks)
            if not first.done:
                self._tell_drained()
                return
            exchanges.popleft()
        if self._on_empty is not None:
            self._on_empty()

    def writing_resumed(self) -> None:
        self.write_paused = False
        self.release_memory()
        self._tell_drained()

    def count_unread(self) -> None:
        """Count the unread bytes of answers that exceed the memory of their requests. Raises Exhausted if there is too little
        memory."""
        more = self.backlog() - self.memory_until_sent - sum([one.memory_taken for one in self.exchanges])
        if more > COUNTED_FROM:
            self.memory.take(more)
            self.memory_until_sent += more

    def keeps_behind_stream(self) -> bool:
        """Return whether counted answers wait behind a stream, which may never end."""
        exchanges = self.exchanges
        if not self.memory_until_sent or not exchanges or not exchanges[0].status:
            return False
        return any(one.done for one in exchanges)

    def release_memory(self) -> None:
        """Release the memory of requests whose answers are sent. Bytes below the transport's high-water mark count as sent."""
        if self.memory_until_sent and (
            self.transport is None or not (self.write_paused or any(one.done for one in self.exchanges))
        ):
            self.memory.give(self.memory_until_sent)
            self.memory_until_sent = 0

    def abandon(self) -> None:
        """Abandon all exchanges. Called when the client has disconnected."""
        access = self.context.access
        if access is not None:
            for exchange in self.exchanges:
                if not exchange.done:
                    access.answered(self.transport, exchange.head, exchange.began_ns, CLIENT_GONE)
        self.transport = None  # set first, so that nothing more is written for the exchanges
        self.closing = True
        self._on_empty = None  # breaks a reference cycle with the connection
        exchanges, self.exchanges = self.exchanges, deque()
        for exchange in exchanges:
            exchange.abandon()
        self.release_memory()
        if self.on_abandoned is not None:
            self.on_abandoned(self)

    def _tell_drained(self) -> None:
        """Call `on_drained` of the first exchange, if it is a stream and the client takes its data."""
        if self.exchanges and not self.write_paused:
            on_drained = self.exchanges[0].on_drained
            if on_drained is not None:
                on_drained()


def _write(transport: asyncio.Transport, chunks: list[Chunk]) -> None:
    if sum(map(len, chunks)) < JOIN_BELOW:
        transport.write(b"".join(chunks))
    else:
        write_large(transport, chunks)

"""One request and its answer on a connection: what a handler gets."""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from serving.core.request import InferenceRequest
from serving.frontends.http1.message import Chunk, Head, Reply, connection_header, error_reply, status_line

if TYPE_CHECKING:
    from serving.frontends.http1.connection import Connection


class Exchange:
    """One request and its answer. A handler gets it, and returns a Reply, an awaitable of one, or None when it calls
    `reply` itself later (inference) or streams (`start_stream`, `write`, `end`)."""

    __slots__ = (
        "began_ns",
        "binary",
        "body",
        "chunked",
        "chunks",
        "connection",
        "done",
        "head",
        "on_drained",
        "requests",
        "taken",
        "task",
        "traced",
    )

    def __init__(self, connection: "Connection", head: Head, body: Chunk, binary: Chunk = b"") -> None:
        self.connection = connection
        self.began_ns = connection.began_ns
        self.head = head
        self.body = body  # the whole body, or its first Inference-Header-Content-Length bytes
        self.binary = binary  # what follows those
        self.chunks: list[Chunk] = []  # encoded, waiting for the answers before it
        self.done = False
        self.chunked = False  # the answer has no known length, and the client reads it in chunks
        self.on_drained: Callable[[], None] | None = None  # the client has taken what a stream has written so far
        self.requests: tuple[InferenceRequest, ...] = ()  # cancelled when the client goes
        self.task: asyncio.Task[None] | None = None
        self.traced = False  # one of its requests has a trace that wants to know what is sent
        self.taken = 0  # bytes of the server's memory for requests

    def received(self) -> tuple[int, int]:
        """When the client began to send this request, and now (monotonic ns), for a trace."""
        now = time.monotonic_ns()
        return self.began_ns or now, now

    def reply(self, reply: Reply) -> None:
        if not self.done:
            self.send(reply.encode(self.head, self.connection.closes_after(self)))

    def send(self, chunks: list[Chunk]) -> None:
        """The whole answer, already encoded. The client may have gone meanwhile."""
        if not self.done:
            self.chunks = chunks
            self.done = True
            if self.traced:
                self.sending()
            self.connection.flush()
            self._settle()
            if self.traced:
                self._tell_sent()
            self.requests = ()  # they refer back: left alone, only the garbage collector would free their tensors

    def take(self, size: int) -> None:
        """Room for `size` bytes more; Exhausted where the server has none."""
        self.connection.listener.memory.take(size)
        self.taken += size

    def give(self, size: int) -> None:
        """Room that is no longer needed."""
        self.connection.listener.memory.give(size)
        self.taken -= size

    def _settle(self) -> None:
        """The answer is complete: the request is counted until the client has taken it, for it may be as large."""
        connection = self.connection
        if self.taken or connection.untaken:
            connection.untaken += self.taken
            self.taken = 0
            connection.settle()

    def fail(self, error: Exception) -> None:
        """Answer with the error; what the models may still answer is not wanted."""
        self.connection.listener.note_error(error)
        requests = self.requests
        self.reply(error_reply(error, self.head.path))
        self.requests = ()
        _cancel(requests)

    def cancel(self) -> None:
        """What the models may still answer to this exchange is not wanted."""
        requests, self.requests = self.requests, ()
        _cancel(requests)

    def start_stream(self, content_type: str, status: int = 200) -> None:
        """Begin an answer without a known length: in chunks, or for HTTP/1.0 until the connection closes."""
        self.chunked = not self.head.http_1_0
        if not self.chunked:
            self.connection.closing = True
        start = f"{status_line(status)}Content-Type: {content_type}\r\nCache-Control: no-store\r\n"
        if self.chunked:
            start += "Transfer-Encoding: chunked\r\n"
        self.sending()
        closing = not self.chunked or self.connection.closes_after(self)
        self._add(f"{start}{connection_header(self.head, closing)}\r\n".encode())

    def write(self, data: bytes) -> None:
        """A piece of a stream, never empty."""
        self._add(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        if self.chunked:
            self.chunks.append(b"0\r\n\r\n")
        self.done = True
        self.on_drained = None
        self.connection.flush()
        self._settle()
        self._tell_sent()
        self.cancel()

    def sending(self) -> None:
        """Tell traces that an answer goes out; called before it is compressed in a thread, too."""
        for request in self.requests:
            if request.trace is not None:
                request.trace.sending()

    def _tell_sent(self) -> None:
        for request in self.requests:
            if request.trace is not None:
                request.trace.sent(self._unsent)

    def _unsent(self) -> bool:
        return self.connection.transport is not None and (bool(self.chunks) or self.backlog > 0)

    def _add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.connection.flush()

    @property
    def backlog(self) -> int:
        """Bytes that this client has not taken yet."""
        return self.connection.backlog()

    def abandon(self) -> None:
        """The client has gone."""
        self.done = True
        if self.taken:
            self.give(self.taken)
        self.on_drained = None
        self._tell_sent()
        self.cancel()
        if self.task is not None:
            self.task.cancel()
        self.connection.listener.abandoned(self)


def _cancel(requests: tuple[InferenceRequest, ...]) -> None:
    for request in requests:
        if request.flow is not None:
            request.flow.close()
        request.cancel()

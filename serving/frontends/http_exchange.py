"""One request and its answer on a connection: what a handler gets."""

import asyncio
from typing import TYPE_CHECKING

from serving.frontends.http_message import Chunk, Head, Reply, connection_header, error_reply
from serving.request import InferenceRequest

if TYPE_CHECKING:
    from serving.frontends.http_connection import Connection


class Exchange:
    """One request and its answer. A handler gets it, and returns a Reply, an awaitable of one, or None when it calls
    `reply` itself later (inference) or streams (`start_stream`, `write`, `end`)."""

    __slots__ = ("binary", "body", "chunks", "connection", "done", "head", "request", "task")

    def __init__(self, connection: "Connection", head: Head, body: Chunk, binary: Chunk = b"") -> None:
        self.connection = connection
        self.head = head
        self.body = body  # the whole body, or its first Inference-Header-Content-Length bytes
        self.binary = binary  # what follows those
        self.chunks: list[Chunk] = []  # encoded, waiting for the answers before it
        self.done = False
        self.request: InferenceRequest | None = None  # cancelled when the client goes
        self.task: asyncio.Task[None] | None = None

    def reply(self, reply: Reply) -> None:
        if not self.done:
            self.send(reply.encode(self.head, self.connection.closes_after(self)))

    def send(self, chunks: list[Chunk]) -> None:
        """The whole answer, already encoded. The client may have gone meanwhile."""
        if not self.done:
            self.chunks = chunks
            self.done = True
            self.request = None  # it refers back: left alone, only the garbage collector would free its tensors
            self.connection.flush()

    def fail(self, error: Exception) -> None:
        self.connection.listener.note_error(error)
        self.reply(error_reply(error))

    def start_stream(self, content_type: str) -> None:
        """Begin an answer without a known length: it ends when the connection closes."""
        self.connection.closing = True
        start = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nCache-Control: no-store\r\n"
        self.write((start + connection_header(self.head, True) + "\r\n").encode())

    def write(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.connection.flush()

    def end(self) -> None:
        self.done = True
        self.connection.flush()

    @property
    def backlog(self) -> int:
        """Bytes that this client has not taken yet."""
        return self.connection.backlog()

    def abandon(self) -> None:
        """The client has gone."""
        self.done = True
        request, self.request = self.request, None
        if request is not None:
            request.cancel()
        if self.task is not None:
            self.task.cancel()
        self.connection.listener.abandoned(self)

"""One gRPC call on one HTTP/2 stream: it takes messages, and sends messages and a status (gRPC's PROTOCOL-HTTP2)."""

import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from google.protobuf.message import Message

from serving.core.errors import Exhausted, ServingError
from serving.frontends.grpc.call_headers import (
    ENCODINGS,
    MAX_STATUS_MESSAGE,
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    error_response,
    http_error,
    response_headers,
    status_trailers,
)
from serving.frontends.grpc.compression import (
    COMPRESSED_FROM,
    COMPRESSED_ON_LOOP,
    CompressionQueue,
    accepted_encoding,
    compress,
)
from serving.frontends.grpc.deadlines import Deadlines, Group
from serving.frontends.grpc.message_stream import PREFIX_SIZE, MessageStream
from serving.frontends.grpc.request_decoder import RequestDecoder
from serving.frontends.grpc.response_encoder import ResponseEncoder
from serving.frontends.grpc.status import CallError, Status, status_of
from serving.frontends.http2.frames import NO_HEADERS, ErrorCode
from serving.frontends.http2.stream import Buffer, Stream, StreamConnection
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.client_limits import CONTROL_BODY, Awaited
from serving.resources.request_memory import COUNTED_FROM
from serving.server.inference_server import InferenceServer

log = logging.getLogger(__name__)


class AccessLog(Protocol):
    """A log of calls. called: gets each ended call, with its status."""

    def called(self, call: "Call", status: Status) -> None: ...


@dataclass(frozen=True)
class CallServices:
    """The services and settings that all calls of a listener share.

    max_message_size: the largest message, in bytes. compression_level: zlib's level for inference responses; 0 for no
    compression. access: the log of calls, or None.
    """

    server: InferenceServer
    authoriser: Authoriser
    decoder: RequestDecoder
    encoder: ResponseEncoder
    max_message_size: int
    compression_level: int = 0
    deadlines: Deadlines = field(default_factory=Deadlines)
    access: AccessLog | None = None


class Method(NamedTuple):
    """A method that clients may call, and how its calls run.

    group: the method's group in --grpc-restricted-protocol. call: creates a call; usually a subclass of Call.
    request: the class of the request message, for a unary method. handle: returns the response message of a unary method, or a
        coroutine that returns it.
    large: whether messages may have up to --grpc-max-message-size bytes, not only CONTROL_BODY.
    """

    name: str
    group: str
    call: "Callable[[StreamConnection, int, CallHead, CallServices, Method], Stream]"
    request: type[Message] | None = None
    handle: "Callable[[InferenceServer, Any], Message | Coroutine[Any, Any, Message]] | None" = None
    large: bool = False


class Call(MessageStream):
    """The base class of calls. It checks the headers, keeps the deadline, and ends the call once with a status."""

    __slots__ = ("began_ns", "compressing", "ending", "headers_sent", "method", "services")

    def __init__(
        self, connection: StreamConnection, stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> None:
        limit = services.max_message_size
        if not method.large and limit > CONTROL_BODY:
            limit = CONTROL_BODY
        MessageStream.__init__(self, connection, stream_id, head, services.server.request_memory, limit)
        self.services = services
        self.began_ns = 0 if services.access is None else time.monotonic_ns()  # arrival, for the log of calls
        self.method = method
        self.headers_sent = False
        self.ending: Group | None = None  # the calls that share this call's deadline
        self.compressing: CompressionQueue | None = None  # messages that wait to be compressed and sent

    # -- for subclasses ----------------------------------------------------------------------------------------------
    def abandon(self) -> None:
        """Stop the work. Called when the client has cancelled the call, or the call has its status."""

    def authorise(self, model: str | None) -> None:
        """Raise unless the call's headers allow this method for `model`, which is None if it is not known yet."""
        authoriser = self.services.authoriser
        if not authoriser.open:
            authoriser.check(self.method.group, self.head.headers, model)

    # -- the HTTP/2 stream -------------------------------------------------------------------------------------------
    def opened(self) -> None:
        if not (self.head.usual or self._may_go_on()):
            return
        if not self.services.authoriser.open:
            try:
                self.authorise(None)  # before the message, so that a client without permission cannot send a large one
            except ServingError as error:
                self.fail_with(error)

    def _may_go_on(self) -> bool:
        """Start the deadline and count large headers. If a header is wrong, answer the call and return False."""
        head = self.head
        if head.malformed:
            self.answered = True
            self.connection.reset(self, ErrorCode.PROTOCOL_ERROR)
        elif head.http_status != 200:
            self.answered = True
            self.connection.writer.send(self, NO_HEADERS, trailers=http_error(head.http_status))
        elif head.error:
            self.fail(Status.INVALID_ARGUMENT, head.error)
        elif head.encoding not in ENCODINGS:
            self.fail(
                Status.UNIMPLEMENTED, f"grpc-encoding is '{head.encoding[:40]}'; expected one of {', '.join(ENCODINGS)}"
            )
        else:
            if head.timeout_s is not None:
                self.ending = self.services.deadlines.add(self, head.timeout_s)
            if head.size > COUNTED_FROM:
                self._count_headers(head.size)
        return not self.answered

    def _count_headers(self, size: int) -> None:
        """Count large headers as memory. With HPACK, a few bytes on the wire can repeat them many times."""
        try:
            self.take(size)
        except Exhausted as error:
            self.fail_with(error)

    def aborted(self) -> None:
        self._finish(Status.CANCELLED)
        self.closed()

    def overdue(self, awaited: Awaited) -> None:
        if awaited is Awaited.REQUEST:
            self.fail(Status.DEADLINE_EXCEEDED, "the request came too slowly: see --request-min-rate")
        elif awaited is Awaited.MESSAGE:
            self.fail(Status.CANCELLED, "the stream was idle for too long: see --grpc-stream-idle-secs")
        else:
            super().overdue(awaited)

    # -- the response ------------------------------------------------------------------------------------------------
    def respond(self, parts: Iterable[Buffer], size: int, final: bool = True, compressible: bool = False) -> None:
        """Send a message that consists of buffers, `size` bytes in total. The buffers are read before this returns.
        final: whether to send the status OK after it. compressible: whether --grpc-infer-response-compression-level applies."""
        if self.answered:
            return
        if compressible and self.services.compression_level:
            self._respond_compressed(parts, size, final)
        else:
            self.send(parts, size, final)

    def _respond_compressed(self, parts: Iterable[Buffer], size: int, final: bool) -> None:
        level = self.services.compression_level
        encoding = accepted_encoding(self.head.headers)
        if encoding and (self.compressing or size > COMPRESSED_ON_LOOP):
            if self.compressing is None:
                self.compressing = CompressionQueue(self, encoding, level)
            self.compressing.add(b"".join(parts), final)
        elif encoding and size >= COMPRESSED_FROM:
            flag, data = compress(b"".join(parts), encoding, level)
            self.send((data,), len(data), final, encoding, flag)
        else:
            self.send(parts, size, final, encoding)

    def send(self, parts: Iterable[Buffer], size: int, final: bool, encoding: str = "", flag: bytes = b"\0") -> None:
        """Send one message unchanged. flag: gRPC's compressed flag. encoding: the encoding of compressed messages."""
        if self.headers_sent:
            headers = NO_HEADERS
        else:
            headers = response_headers(encoding) if encoding else RESPONSE_HEADERS
            self.headers_sent = True
        trailers = NO_HEADERS
        if final:
            trailers = OK_TRAILERS
            self._finish(Status.OK)
        self.connection.writer.send(
            self, headers, (flag, size.to_bytes(4, "big"), *parts), PREFIX_SIZE + size, trailers
        )

    def unsent(self) -> bool:
        """Return whether the client has not yet taken all of the response."""
        transport = self.connection.transport
        waiting = bool(self.outgoing) or bool(self.compressing) or transport.get_write_buffer_size() > 0
        return waiting and not transport.is_closing()

    def succeed(self) -> None:
        """End the call with the status OK after all of its messages have been sent."""
        if self.answered:
            return
        if self.compressing:
            self.compressing.end()
            return
        self._finish(Status.OK)
        headers = NO_HEADERS if self.headers_sent else RESPONSE_HEADERS
        self.connection.writer.send(self, headers, trailers=OK_TRAILERS)

    def fail(self, status: Status, message: str) -> None:
        """End the call with this status, unless it has a status already."""
        if self.answered:
            return
        self._finish(status)
        trailers = (status_trailers if self.headers_sent else error_response)(status, message[:MAX_STATUS_MESSAGE])
        self.connection.writer.send(self, NO_HEADERS, trailers=trailers)

    def fail_with(self, error: ServingError) -> None:
        """End the call with the error's status."""
        self.fail(status_of(error), error.message)

    def fail_because(self, error: Exception) -> None:
        """End the call with the status of an error. An unexpected error is logged and becomes INTERNAL."""
        if isinstance(error, CallError):
            self.fail(error.status, error.message)
        elif isinstance(error, ServingError):
            self.fail_with(error)
        else:
            log.error("%s failed", self.method.name, exc_info=error)
            self.fail(Status.INTERNAL, "internal error")

    def expired(self) -> None:
        self.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _finish(self, status: Status) -> None:
        if self.services.access is not None and not self.answered:
            self.services.access.called(self, status)
        self.stop()

    def stop(self) -> None:
        """Ignore further messages of the client, and stop the work."""
        self.answered = True
        if self.reader is not None or self.decompressing is not None:
            self.stop_reading()
        if self.ending is not None:
            self.ending.pop(self, None)
        if self.compressing is not None:
            self.compressing.drop()
        self.abandon()

"""One gRPC call on one HTTP/2 stream: messages in, a response and a status out."""

import asyncio
import logging
import zlib
from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from serving.core.errors import ServingError
from serving.frontends.grpc.messages import PREFIX_SIZE, Messages
from serving.frontends.grpc.packing import PACKED_AT_ONCE, PACKED_FROM, Packing, pack
from serving.frontends.grpc.status import (
    ENCODINGS,
    MAX_STATUS_MESSAGE,
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    Status,
    error_response,
    http_error,
    response_headers,
    status_of,
    status_trailers,
)
from serving.frontends.http2.connection import Connection
from serving.frontends.http2.frames import ErrorCode
from serving.frontends.http2.stream import Stream
from serving.frontends.shared.client_limits import CONTROL_BODY, Awaited
from serving.frontends.shared.inflate import WINDOW_BITS, TooLargeError, inflate
from serving.resources.request_memory import COUNTED_FROM

if TYPE_CHECKING:
    from serving.frontends.grpc.methods import Method
    from serving.frontends.grpc_server import GrpcServer

log = logging.getLogger(__name__)


class CallError(Exception):
    """Ends the call with this status."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Call(Stream):
    """The part that all calls share: reading messages, deadline, one answer."""

    __slots__ = (
        "answered",
        "deadline",
        "frontend",
        "head",
        "headers_sent",
        "inflating",
        "message_taken",
        "messages",
        "method",
        "packing",
        "reading",
        "taken",
    )

    def __init__(
        self, connection: Connection[CallHead], stream_id: int, head: CallHead, frontend: "GrpcServer", method: "Method"
    ) -> None:
        super().__init__(connection, stream_id)
        self.frontend = frontend
        self.head = head
        self.method = method
        self.answered = False  # the final status is decided
        self.headers_sent = False
        self.deadline: asyncio.TimerHandle | None = None
        self.reading = False
        self.messages: Messages | None = None  # what has come of them, unless it was just one
        self.taken = 0  # bytes of the server's memory for requests
        self.message_taken = 0  # those for the message that is being handed over
        self.inflating: asyncio.Task[None] | None = None
        self.packing: Packing | None = None  # large messages to send

    takes_several: ClassVar[bool] = False  # requests, between which the client may be silent

    # -- for subclasses ----------------------------------------------------------------------------------------------
    @abstractmethod
    def message(self, body: "bytes | memoryview", start: int) -> None:
        """One whole message, decompressed, which begins at `start`."""

    def half_closed(self) -> None:
        """The client has sent its last message."""

    def abandon(self) -> None:
        """Stop the work: the client has gone, or has its answer."""

    def authorise(self, model: str | None) -> None:
        """Raise unless these headers allow this method (None: for any model, for all that is known yet)."""
        authoriser = self.frontend.authoriser
        if not authoriser.open:
            authoriser.check(self.method.group, self.head.headers, model)

    # -- the HTTP/2 stream -------------------------------------------------------------------------------------------
    def opened(self) -> None:
        head = self.head
        if head.malformed:
            self.answered = True
            self.connection.reset(self, ErrorCode.PROTOCOL_ERROR)
        elif head.http_status != 200:
            self.answered = True
            self.connection.output.send(self, b"", trailers=http_error(head.http_status))
        elif head.error:
            self.fail(Status.INVALID_ARGUMENT, head.error)
        elif head.encoding not in ENCODINGS:
            self.fail(
                Status.UNIMPLEMENTED, f"grpc-encoding is '{head.encoding[:40]}'; expected one of {', '.join(ENCODINGS)}"
            )
        else:
            if head.timeout_s is not None:
                self.deadline = asyncio.get_running_loop().call_later(head.timeout_s, self._expired)
            try:
                self.authorise(None)  # before a large message is taken from someone who may not send it
            except ServingError as error:
                self.fail_with(error)

    def receive(self, data: "bytes | memoryview", end: bool) -> None:
        if self.answered:
            return
        try:
            if end and self.messages is None and _is_one_message(data, self.frontend.max_message_size):
                if len(data) > COUNTED_FROM:
                    self.message_taken = self.take(len(data))
                self.message(bytes(data), PREFIX_SIZE)
                self.half_closed()
                return
            if self.messages is None:
                self.messages = Messages(self._check_prefix)
            self.take(len(data))
            self.messages.add(data)
            self._read_messages()
        except Exception as error:
            self.fail_because(error)

    def aborted(self) -> None:
        self._finish()
        self.sent()

    def sent(self) -> None:
        if self.taken:
            self.give(self.taken)

    def resume(self) -> None:
        """Go on with what is unread, and let the client send more, now that `wants_more` may be true again."""
        if not self.reading and not self.answered:
            self.receive(b"", self.remote_ended)
            self.connection.replenish(self)

    # -- time --------------------------------------------------------------------------------------------------------
    def awaited(self) -> "tuple[Awaited, int] | None":
        if self.outgoing:
            return Awaited.RESPONSE, self.pushed
        if self.answered or self.remote_ended or self.inflating is not None:
            return None
        messages = self.messages
        if messages or not self.takes_several:
            return (Awaited.REQUEST, messages.received if messages is not None else 0) if self.wants_more() else None
        return (Awaited.MESSAGE, 0) if self.is_idle() else None

    def overdue(self, awaited: Awaited) -> None:
        if awaited is Awaited.REQUEST:
            self.fail(Status.DEADLINE_EXCEEDED, "the request did not come on in time: see --request-min-rate")
        elif awaited is Awaited.MESSAGE:
            self.fail(Status.CANCELLED, "nothing was asked on this stream for too long: see --grpc-stream-idle-secs")
        else:
            super().overdue(awaited)

    def is_idle(self) -> bool:
        """Whether nothing is under way on a call that takes several requests."""
        return True

    def released(self) -> None:
        """The connection, which held this call back, has fewer requests under way."""
        self.resume()

    # -- room for requests -------------------------------------------------------------------------------------------
    def take(self, size: int) -> int:
        """Room for `size` bytes of requests; Exhausted where the server has none."""
        self.frontend.server.request_memory.take(size)
        self.taken += size
        return size

    def give(self, size: int) -> None:
        """Room that is no longer needed; what is left is given back when the client has taken the answer."""
        self.frontend.server.request_memory.give(size)
        self.taken -= size

    # -- messages ----------------------------------------------------------------------------------------------------
    def _read_messages(self) -> None:
        """Hand over every whole message; of an unfinished one check only what its prefix claims."""
        self.reading = True
        messages = self.messages
        assert messages is not None
        try:
            while self.inflating is None and not self.answered and self.wants_more():
                message = messages.next()
                if message is None:
                    break
                self._hand_over(*message)
        finally:
            self.reading = False
        if self.remote_ended and self.inflating is None and not self.answered and self.wants_more():
            if messages:
                raise CallError(Status.INVALID_ARGUMENT, "the stream ended in the middle of a message")
            self.half_closed()

    def _largest(self) -> int:
        """Bytes of a message, compressed or not."""
        limit = self.frontend.max_message_size
        return limit if self.method.large else min(limit, CONTROL_BODY)

    def _check_prefix(self, compressed: int, size: int) -> None:
        limit = self._largest()
        if size > limit:
            raise CallError(Status.RESOURCE_EXHAUSTED, f"received a message of {size} bytes; at most {limit} are taken")
        if compressed > 1:
            raise CallError(Status.INVALID_ARGUMENT, f"a message's compressed flag is {compressed}; expected 0 or 1")
        if compressed and self.head.encoding == "identity":
            raise CallError(Status.INVALID_ARGUMENT, "a message is compressed, but grpc-encoding is not set")

    def _hand_over(self, compressed: int, content: "bytes | memoryview") -> None:
        self.message_taken = PREFIX_SIZE + len(content)
        if not compressed:
            self.message(content, 0)
            return
        self.inflating = asyncio.get_running_loop().create_task(self._inflate(content))

    async def _inflate(self, content: "bytes | memoryview") -> None:
        limit, encoding = self._largest(), self.head.encoding
        try:
            inflater = await inflate(content, encoding, limit, self, self.frontend.server.request_memory)
            if self.answered:
                return
            if not inflater.whole:
                raise CallError(Status.INVALID_ARGUMENT, f"a message is not whole in its encoding {encoding}")
            self.message_taken += len(inflater.made)
            self.message(memoryview(inflater.made), 0)
            self.inflating = None
            self.resume()
        except TooLargeError:
            self.fail(Status.RESOURCE_EXHAUSTED, f"a message inflates to over {limit} bytes")
        except zlib.error:
            self.fail(Status.INVALID_ARGUMENT, "a message cannot be decompressed")
        except Exception as error:
            self.fail_because(error)

    # -- the answer --------------------------------------------------------------------------------------------------
    def respond(self, parts: Iterable[Any], size: int, final: bool = True, compress: bool = False) -> None:
        """Send a message (buffers of `size` bytes in all, read before this returns), and with it the status OK."""
        if self.answered:
            return
        level = self.frontend.compression if compress else 0
        encoding = self._encoding() if level else ""
        if encoding and (self.packing or size > PACKED_AT_ONCE):
            if self.packing is None:
                self.packing = Packing(self, encoding, level)
            self.packing.add(b"".join(parts), final)
        elif encoding and size >= PACKED_FROM:
            flag, data = pack(b"".join(parts), encoding, level)
            self.send((data,), len(data), final, encoding, flag)
        else:
            self.send(parts, size, final, encoding)

    def send(self, parts: Iterable[Any], size: int, final: bool, encoding: str, flag: bytes = b"\0") -> None:
        """One message as it is to go out; `flag` says whether it is compressed."""
        headers = b"" if self.headers_sent else response_headers(encoding)
        self.headers_sent = True
        body = (flag + size.to_bytes(4, "big"), *parts)
        if final:
            self._finish()
        self.connection.output.send(self, headers, body, PREFIX_SIZE + size, OK_TRAILERS if final else b"")

    def _encoding(self) -> str:
        """How this client takes compressed messages; "" where it does not."""
        accepted = self.head.headers.get("grpc-accept-encoding", "").replace(" ", "").split(",")
        return next((name for name in WINDOW_BITS if name in accepted), "")

    def unsent(self) -> bool:
        """Whether the client has still to take some of the answer, for a trace."""
        transport = self.connection.transport
        waiting = bool(self.outgoing) or bool(self.packing) or transport.get_write_buffer_size() > 0
        return waiting and not transport.is_closing()

    def succeed(self) -> None:
        """End a call whose messages have all been sent."""
        if self.answered:
            return
        if self.packing:
            self.packing.end()
            return
        self._finish()
        headers = b"" if self.headers_sent else RESPONSE_HEADERS
        self.connection.output.send(self, headers, trailers=OK_TRAILERS)

    def fail(self, status: Status, message: str) -> None:
        if self.answered:
            return
        self._finish()
        block = (status_trailers if self.headers_sent else error_response)(status, message[:MAX_STATUS_MESSAGE])
        self.connection.output.send(self, b"", trailers=block)

    def fail_with(self, error: ServingError) -> None:
        self.fail(status_of(error), error.message)

    def fail_because(self, error: Exception) -> None:
        """The status of whatever went wrong; what we did not foresee is logged and told as INTERNAL."""
        if isinstance(error, CallError):
            self.fail(error.status, error.message)
        elif isinstance(error, ServingError):
            self.fail_with(error)
        else:
            log.error("%s failed", self.method.name, exc_info=error)
            self.fail(Status.INTERNAL, "internal error")

    def _expired(self) -> None:
        self.fail(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")

    def _finish(self) -> None:
        """Whatever comes from now on is ignored."""
        self.answered = True
        self.messages = None
        if self.deadline is not None:
            self.deadline.cancel()
        if self.inflating is not None and self.inflating is not asyncio.current_task():
            self.inflating.cancel()
        if self.packing is not None:
            self.packing.drop()
        self.abandon()


def _is_one_message(data: "bytes | memoryview", limit: int) -> bool:
    """Whether these bytes are just one uncompressed message: what nearly every small call consists of."""
    return (
        len(data) >= PREFIX_SIZE
        and not data[0]
        and int.from_bytes(data[1:PREFIX_SIZE], "big") == len(data) - PREFIX_SIZE <= limit
    )

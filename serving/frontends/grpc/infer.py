"""ModelInfer and ModelStreamInfer: the calls of the hot path."""

import time
from collections import deque

from serving.core.errors import ServingError, unsupported
from serving.core.in_flight import InFlightRequest, SendTrace
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.frontends.grpc.call import Call, CallServices, Method
from serving.frontends.grpc.call_headers import CallHead
from serving.frontends.grpc.response_encoder import RequestIdentity, encode_without_tensors
from serving.frontends.grpc.status import CallError, Status
from serving.frontends.http2.stream import Buffer, StreamConnection

MAX_PENDING_REQUESTS = 256  # requests of one stream that may be unanswered, before the server stops reading it


class InferCall(Call):
    """ModelInfer: one request, one response."""

    __slots__ = ("began_ns", "request")
    flow: ResponseFlow | None = None  # back-pressure is needed only for several answers

    def __init__(
        self, connection: StreamConnection, stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> None:
        Call.__init__(self, connection, stream_id, head, services, method)
        self.began_ns = time.monotonic_ns() if services.server.tracing else 0
        self.request: InFlightRequest | None = None

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.request is not None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message")
        services = self.services
        asked = services.decoder.decode(body, start, self.head.headers)
        if not services.authoriser.open:
            self.authorise(asked.model_name)
        self.request = InFlightRequest(asked, self)

    def half_closed(self) -> None:
        request = self.request
        if request is None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message, but none came")
        received = (self.began_ns, time.monotonic_ns()) if self.began_ns else None
        self.services.server.infer(request, "grpc", self.connection.transport, self.head.headers, received)
        if request.stream is not None:
            self.fail_with(_decoupled())

    def on_response(self, response: Answer, final: bool) -> None:
        if self.answered:
            return
        trace = self.request.trace if self.request is not None else None
        try:
            if final and isinstance(response, InferenceResponse):
                parts, size = self.services.encoder.encode(response)
                if trace is not None:
                    trace.sending()
                self.respond(parts, size, True, True)
            else:
                if trace is not None:
                    trace.sending()
                self.fail_with(response if isinstance(response, ServingError) else _decoupled())
        except Exception as error:
            self.fail_because(error)
        if trace is not None:
            trace.sent(self.unsent)

    def abandon(self) -> None:
        """Cancel the request and drop it: as part of a reference cycle, it would keep its tensors until the collector runs."""
        request = self.request
        if request is not None:
            self.request = None
            if not request.finished:
                request.cancel()


def _decoupled() -> ServingError:
    return unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


class StreamInferCall(Call):
    """ModelStreamInfer: many requests, each of which gets responses or an error. Responses are sent in the order of the
    requests, but responses of decoupled models immediately."""

    __slots__ = ("began_ns", "flow", "flushing", "in_order", "pending", "queued_bytes")
    client_streaming = True

    def __init__(
        self, connection: StreamConnection, stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> None:
        super().__init__(connection, stream_id, head, services, method)
        self.began_ns = 0  # when the stream began to wait for the next request, in monotonic ns
        self.pending: dict[_PendingRequest, None] = {}
        self.in_order: deque[_PendingRequest] = deque()  # requests whose responses wait for their turn
        self.flow = ResponseFlow()
        self.queued_bytes = 0  # bytes of responses in `outgoing` that are counted in `flow`
        self.flushing = False

    def message(self, body: "bytes | memoryview", start: int) -> None:
        received = self._received() if self.services.server.tracing else None
        pending = _PendingRequest(self, self.message_memory)
        self.pending[pending] = None
        self.connection.limit.pending_requests += 1
        self.in_order.append(pending)
        try:
            asked = self.services.decoder.decode(body, start, self.head.headers)
            pending.identity = (asked.id, asked.model_name, asked.model_version)
            request = pending.request = InFlightRequest(asked, pending)
            self.authorise(asked.model_name)
            self.services.server.infer(request, "grpc", self.connection.transport, self.head.headers, received)
        except ServingError as error:
            pending.on_response(error, True)
        else:
            pending.trace = request.trace
            if request.stream is not None and pending in self.pending:
                self.in_order.remove(pending)
                pending.ordered = False
                self.flush()

    def _received(self) -> tuple[int, int]:
        """Return when this stream began to wait for a request, and the present time, in monotonic ns."""
        now = time.monotonic_ns()
        began, self.began_ns = self.began_ns or now, now
        return began, now

    def wants_more(self) -> bool:
        waiting = len(self.outgoing or ()) + len(self.compressing or ())
        if len(self.pending) >= MAX_PENDING_REQUESTS or waiting >= MAX_PENDING_REQUESTS:
            return False
        return not self.connection.limit.must_wait(self)

    def is_idle(self) -> bool:
        return not self.pending

    def drained(self) -> None:
        if self.compressing:  # the queue calls this method again when it is empty
            return
        self.flow.note_taken(self.queued_bytes)
        self.queued_bytes = 0
        self.resume()

    def half_closed(self) -> None:
        if not self.pending:
            self.succeed()

    def send_ready(self, pending: "_PendingRequest") -> None:
        """Send the ready responses of a request that need not wait for earlier requests."""
        while pending.ready and not self.answered:
            parts, size, counted = pending.ready.popleft()
            self.respond(parts, size, final=False, compressible=True)
            if self.outgoing or self.compressing:
                self.queued_bytes += counted
            elif counted:
                self.flow.note_taken(counted)
        if pending.done and pending in self.pending:
            del self.pending[pending]
            self.connection.limit.requests_ended()
            self.give(pending.memory)
            if pending.trace is not None:
                pending.trace.sent(self.unsent)

    def flush(self) -> None:
        """Send the responses that are ready, in the order of the requests."""
        if self.flushing:
            return
        self.flushing = True
        in_order = self.in_order
        while in_order and (in_order[0].ready or in_order[0].done):
            self.send_ready(in_order[0])
            if in_order and in_order[0].done:  # `send_ready` empties `in_order` if the call ends
                in_order.popleft()
        self.flushing = False
        self.resume()

    def abandon(self) -> None:
        self.flow.close()
        for pending in list(self.pending):
            if pending.request is not None:
                pending.request.cancel()
            if pending.trace is not None:
                pending.trace.sent(self.unsent)
        if self.pending:
            self.connection.limit.requests_ended(len(self.pending))
        self.pending.clear()
        self.in_order.clear()


class _PendingRequest:
    """A request of a stream, and its encoded responses that wait to be sent."""

    __slots__ = ("call", "done", "flow", "identity", "memory", "ordered", "ready", "request", "trace")

    def __init__(self, call: StreamInferCall, memory: int) -> None:
        self.call = call
        self.flow = call.flow
        self.memory = memory  # bytes of request memory that this request holds
        self.request: InFlightRequest | None = None
        self.identity: RequestIdentity = ("", "", "")
        self.ready: deque[tuple[list[Buffer], int, int]] = deque()  # buffers, their size, bytes counted in `flow`
        self.done = False
        self.ordered = True
        self.trace: SendTrace | None = None

    def on_response(self, response: Answer, final: bool) -> None:
        call = self.call
        if call.answered:
            return
        if isinstance(response, ServingError) and call.head.headers.get("triton_grpc_error") == "true":
            call.fail_with(response)  # the client has asked that the first error ends the stream
            return
        if isinstance(response, InferenceResponse):
            self._encode(response, final)
        elif response is not None:
            self._add(encode_without_tensors(self.identity, final, response.message))
        elif self.request is not None and self.request.asked.empty_final_response:
            self._add(encode_without_tensors(self.identity, final))
        if self.trace is not None:
            self.trace.sending()
        if final:
            self.done = True
            self.request = None  # breaks a reference cycle
        if self.ordered:
            call.flush()
        else:
            call.send_ready(self)
            call.resume()

    def _encode(self, response: InferenceResponse, final: bool) -> None:
        try:
            parts, size = self.call.services.encoder.encode_for_stream(response, final)
        except ServingError as error:
            self._add(encode_without_tensors(self.identity, final, error.message))
            return
        self.ready.append((parts, size, response.size))

    def _add(self, message: bytes) -> None:
        self.ready.append(([message], len(message), 0))

"""ModelInfer and ModelStreamInfer: the calls of the hot path."""

import time
from collections import deque
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import ServingError, unsupported
from serving.core.request import InferenceRequest, InferenceResponse, SendTrace
from serving.core.response_flow import ResponseFlow
from serving.frontends.grpc.call import Call, CallError
from serving.frontends.grpc.status import Status
from serving.frontends.grpc.wire import varint
from serving.frontends.shared.forwarded_headers import forward_headers

MAX_UNANSWERED = 256  # requests of one stream that the client may send before it takes the answers
_INFER_RESPONSE = bytes([2 << 3 | 2])  # ModelStreamInferResponse.infer_response


def _final_flag(final: bool) -> bytes:
    """What, behind a ModelInferResponse, adds Triton's parameter to it."""
    message = pb.ModelInferResponse()
    message.parameters["triton_final_response"].bool_param = final
    return bytes(message.SerializeToString())


_FINAL = _final_flag(True)
_NOT_FINAL = _final_flag(False)


class InferCall(Call):
    """ModelInfer."""

    __slots__ = ("began_ns", "request")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.began_ns = time.monotonic_ns() if self.frontend.server.tracing else 0
        self.request: InferenceRequest | None = None

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.request is not None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message")
        request = self.frontend.codec.decode(body, start, self._on_response)
        if self.frontend.forwarded is not None:
            forward_headers(self.frontend.forwarded, self.head.headers.items(), request)
        self.authorise(request.model_name)
        self.request = request

    def half_closed(self) -> None:
        if self.request is None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message, but none came")
        request = self.request
        received = (self.began_ns, time.monotonic_ns()) if self.began_ns else None
        self.frontend.server.infer(request, "grpc", self.connection.transport, self.head.headers, received)
        if request.decoupled:
            self.fail_with(_decoupled())

    def _on_response(self, response: "InferenceResponse | ServingError | None", final: bool) -> None:
        if self.answered:
            return
        trace = self.request.trace if self.request is not None else None
        try:
            if isinstance(response, InferenceResponse) and final:
                message = self.frontend.codec.encode(response)
                if trace is not None:
                    trace.sending()
                self.respond(*message, compress=True)
            else:
                if trace is not None:
                    trace.sending()
                self.fail_with(response if isinstance(response, ServingError) else _decoupled())
        except Exception as error:
            self.fail_because(error)
        if trace is not None:
            trace.sent(self.unsent)

    def abandon(self) -> None:
        """Also lets go of the request: it refers to this call, and its tensors would wait for the cycle collector."""
        request, self.request = self.request, None
        if request is not None:
            request.cancel()


def _decoupled() -> ServingError:
    return unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy")


class StreamInferCall(Call):
    """ModelStreamInfer: what is wrong with a request is told inside the stream. Responses come in the order of the requests;
    those of decoupled models at once."""

    __slots__ = ("began_ns", "flow", "flushing", "in_order", "queued", "slots")
    takes_several = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.began_ns = 0  # since when it waits for a request
        self.slots: dict[_Slot, None] = {}  # requests under way
        self.in_order: deque[_Slot] = deque()  # those whose responses wait for their turn
        self.flow = ResponseFlow()
        self.queued = 0  # bytes of the flow in `outgoing`
        self.flushing = False

    def message(self, body: "bytes | memoryview", start: int) -> None:
        received = self._received() if self.frontend.server.tracing else None
        slot = _Slot(self, self.message_taken)
        self.slots[slot] = None
        self.connection.share.unanswered += 1
        self.in_order.append(slot)
        try:
            request = slot.request = self.frontend.codec.decode(body, start, slot.on_response)
            if self.frontend.forwarded is not None:
                forward_headers(self.frontend.forwarded, self.head.headers.items(), request)
            slot.identity = (request.id, request.model_name, request.model_version)
            request.flow = self.flow
            self.authorise(request.model_name)
            self.frontend.server.infer(request, "grpc", self.connection.transport, self.head.headers, received)
        except ServingError as error:
            slot.on_response(error, True)
        else:
            slot.trace = request.trace
            if request.decoupled and slot in self.slots:
                self.in_order.remove(slot)
                slot.ordered = False
                self.flush()

    def _received(self) -> tuple[int, int]:
        """Since when this stream has waited for a request, and now."""
        now = time.monotonic_ns()
        began, self.began_ns = self.began_ns or now, now
        return began, now

    def wants_more(self) -> bool:
        if len(self.slots) >= MAX_UNANSWERED or len(self.outgoing or ()) + len(self.packing or ()) >= MAX_UNANSWERED:
            return False
        return not self.connection.share.hold(self)

    def is_idle(self) -> bool:
        return not self.slots

    def drained(self) -> None:
        if self.packing:  # it says so itself
            return
        self.flow.taken(self.queued)
        self.queued = 0
        self.resume()

    def half_closed(self) -> None:
        if not self.slots:
            self.succeed()

    def deliver(self, slot: "_Slot") -> None:
        """Send what has come for this request, which need not wait for others."""
        while slot.ready and not self.answered:
            parts, size, counted = slot.ready.popleft()
            self.respond(parts, size, final=False, compress=True)
            if self.outgoing or self.packing:
                self.queued += counted
            else:
                self.flow.taken(counted)
        if slot.done and slot in self.slots:
            del self.slots[slot]
            self.connection.share.answered()
            self.give(slot.taken)
            if slot.trace is not None:
                slot.trace.sent(self.unsent)

    def flush(self) -> None:
        """Send what has come for the oldest requests."""
        if self.flushing:
            return
        self.flushing = True
        in_order = self.in_order
        while in_order and (in_order[0].ready or in_order[0].done):
            self.deliver(in_order[0])
            if in_order and in_order[0].done:  # none is left where the call ended meanwhile
                in_order.popleft()
        self.flushing = False
        self.resume()

    def abandon(self) -> None:
        self.flow.close()
        for slot in list(self.slots):
            if slot.request is not None:
                slot.request.cancel()
            if slot.trace is not None:
                slot.trace.sent(self.unsent)
        if self.slots:
            self.connection.share.answered(len(self.slots))
        self.slots.clear()
        self.in_order.clear()


class _Slot:
    """A request of a stream, and its encoded responses until their turn comes."""

    __slots__ = ("call", "done", "identity", "ordered", "ready", "request", "taken", "trace")

    def __init__(self, call: StreamInferCall, taken: int) -> None:
        self.call = call
        self.taken = taken  # bytes of the server's memory for requests
        self.request: InferenceRequest | None = None
        self.identity = ("", "", "")  # id, model, version as asked
        self.ready: deque[tuple[list[Any], int, int]] = deque()  # buffers, their bytes, bytes of the flow
        self.done = False
        self.ordered = True
        self.trace: SendTrace | None = None

    def on_response(self, response: "InferenceResponse | ServingError | None", final: bool) -> None:
        call = self.call
        if call.answered:
            return
        if isinstance(response, ServingError) and call.head.headers.get("triton_grpc_error") == "true":
            call.fail_with(response)  # the client asked for errors as the stream's own status
            return
        if isinstance(response, InferenceResponse):
            self._encode(response, final)
        elif response is not None:
            self._add(pb.ModelStreamInferResponse(error_message=response.message), final)
        elif self.request is not None and self.request.empty_final_response:
            self._add(pb.ModelStreamInferResponse(), final)
        if self.trace is not None:
            self.trace.sending()
        if final:
            self.done = True
            self.request = None  # which refers to this slot
        if self.ordered:
            call.flush()
        else:
            call.deliver(self)
            call.resume()

    def _encode(self, response: InferenceResponse, final: bool) -> None:
        try:
            parts, size = self.call.frontend.codec.encode(response)
        except ServingError as error:
            self._add(pb.ModelStreamInferResponse(error_message=error.message), final)
            return
        flag = _FINAL if final else _NOT_FINAL
        header = _INFER_RESPONSE + varint(size + len(flag))
        self.ready.append(([header, b"".join(parts), flag], len(header) + size + len(flag), response.size))

    def _add(self, message: Any, final: bool) -> None:
        """A message without tensors: whose it is, and whether it is the last one."""
        answer = message.infer_response
        answer.id, answer.model_name, answer.model_version = self.identity
        answer.parameters["triton_final_response"].bool_param = final
        data = message.SerializeToString()
        self.ready.append(([data], len(data), 0))

"""ModelInfer and ModelStreamInfer: the calls of the hot path."""

from collections import deque
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from serving.errors import ServingError, unsupported
from serving.frontends.grpc_call import Call, CallError
from serving.frontends.grpc_status import Status
from serving.frontends.grpc_wire import varint
from serving.request import InferenceRequest, InferenceResponse

MAX_UNANSWERED = 256  # requests of one stream that the client may send before it takes the answers
_INFER_RESPONSE = bytes([2 << 3 | 2])  # ModelStreamInferResponse.infer_response


class InferCall(Call):
    """ModelInfer."""

    __slots__ = ("request",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.request: InferenceRequest | None = None

    def message(self, body: "bytes | bytearray", start: int) -> None:
        if self.request is not None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message")
        request = self.frontend.codec.decode(body, start, self._on_response)
        self.authorise(request.model_name)
        self.request = request

    def half_closed(self) -> None:
        if self.request is None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message, but none came")
        self.frontend.server.infer(self.request)

    def _on_response(self, response: "InferenceResponse | ServingError | None", final: bool) -> None:
        if self.answered:
            return
        if isinstance(response, ServingError):
            self.fail_with(response)
        elif response is None or not final:
            self.fail_with(unsupported("ModelInfer RPC doesn't support models with decoupled transaction policy"))
        else:
            try:
                self.respond(*self.frontend.codec.encode(response))
            except Exception as error:
                self.fail_because(error)

    def abandon(self) -> None:
        """Also lets go of the request: it refers to this call, and its tensors would wait for the cycle collector."""
        request, self.request = self.request, None
        if request is not None:
            request.cancel()


class StreamInferCall(Call):
    """ModelStreamInfer: responses in the order of the requests; what is wrong with a request is told inside the stream."""

    __slots__ = ("flushing", "slots")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.slots: deque[_Slot] = deque()
        self.flushing = False

    def message(self, body: "bytes | bytearray", start: int) -> None:
        slot = _Slot(self)
        self.slots.append(slot)
        try:
            slot.request = self.frontend.codec.decode(body, start, slot.on_response)
            self.authorise(slot.request.model_name)
            self.frontend.server.infer(slot.request)
        except ServingError as error:
            slot.on_response(error, True)

    def wants_more(self) -> bool:
        return len(self.slots) < MAX_UNANSWERED and len(self.outgoing or ()) < MAX_UNANSWERED

    def drained(self) -> None:
        self.resume()

    def half_closed(self) -> None:
        if not self.slots:
            self.succeed()

    def flush(self) -> None:
        """Send what has come for the oldest requests."""
        if self.flushing:
            return
        self.flushing = True
        slots = self.slots
        while slots and (slots[0].ready or slots[0].done):
            if slots[0].ready:
                self.respond(*slots[0].ready.popleft(), final=False)
            else:
                slots.popleft()
        self.flushing = False
        self.resume()

    def abandon(self) -> None:
        for slot in list(self.slots):
            if slot.request is not None:
                slot.request.cancel()
        self.slots.clear()


class _Slot:
    """A request of a stream, and its encoded responses until their turn comes."""

    __slots__ = ("call", "done", "ready", "request")

    def __init__(self, call: StreamInferCall) -> None:
        self.call = call
        self.request: InferenceRequest | None = None
        self.ready: deque[tuple[list[Any], int]] = deque()
        self.done = False

    def on_response(self, response: "InferenceResponse | ServingError | None", final: bool) -> None:
        if self.call.answered:
            return
        if isinstance(response, InferenceResponse):
            parts, size = self.call.frontend.codec.encode(response)
            header = _INFER_RESPONSE + varint(size)
            self.ready.append(([header, b"".join(parts)], len(header) + size))
        elif response is not None:
            message = pb.ModelStreamInferResponse(error_message=response.message)
            message.infer_response.id = self.request.id if self.request is not None else ""
            data = message.SerializeToString()
            self.ready.append(([data], len(data)))
        if final:
            self.done = True
            self.request = None  # which refers to this slot
        self.call.flush()

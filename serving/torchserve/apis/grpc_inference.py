"""TorchServe's gRPC service for inference: Ping, Predictions, StreamPredictions, StreamPredictions2.

The parts of a request are never decoded, and answers cannot carry a handler's status and headers. Sources:
docs/grpc_api.md of TorchServe 0.12, and its answers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping

import orjson
from google.protobuf.message import DecodeError

from serving.core.errors import (
    PermissionDenied,
    QuotaReached,
    ServingError,
    Unauthenticated,
    invalid,
    without_traceback,
)
from serving.core.in_flight import InFlightRequest
from serving.core.request import NO_SEQUENCE, InferenceRequest, ParameterValue, SequencePosition
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.frontends.grpc.call import Call, CallServices, Method
from serving.frontends.grpc.call_headers import CallHead
from serving.frontends.grpc.infer import MAX_PENDING_REQUESTS
from serving.frontends.grpc.methods import METHODS, UnaryCall, UnknownCall
from serving.frontends.grpc.reflection import V2_SERVICES, Reflection
from serving.frontends.grpc.status import CallError, Status, status_of
from serving.frontends.http2.stream import StreamConnection
from serving.frontends.rest.generate import by_name
from serving.server.inference_server import InferenceServer
from serving.torchserve.apis.answers import body_of
from serving.torchserve.apis.grpc_status import status_of_http
from serving.torchserve.apis.messages import (
    INFERENCE,
    POOL,
    Empty,
    PredictionResponse,
    ReceivedPredictions,
    RpcStatus,
    TorchServeHealthResponse,
)
from serving.torchserve.apis.replies import StandingHeaders, describe
from serving.torchserve.apis.targets import INPUT, Target, Targets
from serving.torchserve.registry.errors import TorchServeError, WorkersStarting, bad_request
from serving.torchserve.registry.source import TorchServeSource

log = logging.getLogger(__name__)

OPEN_INFERENCE = "org.pytorch.serve.grpc.openinference.GRPCInferenceService"  # KServe's service under TorchServe's name
_OPEN_METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")
_HTTP = "org.pytorch.serve.http"
_ARCHIVE = "org.pytorch.serve.archive.model"


def call_error(error: Exception) -> CallError:
    """Return the error that ends a call: a status, and a message followed by the Java class that TorchServe's clients expect.

    As in TorchServe, a request that is refused before it reaches a worker gets INTERNAL. Unforeseen errors are logged."""
    if isinstance(error, CallError):
        return error
    if not isinstance(error, ServingError):
        log.error("a call failed unexpectedly", exc_info=error)
    if isinstance(error, PermissionDenied | QuotaReached | Unauthenticated):
        return CallError(status_of(error), error.message)
    described = describe(error)
    package = _ARCHIVE if described.type.startswith("Model") else _HTTP
    refused = isinstance(error, TorchServeError) and described.status in (400, 404, 503)
    status = Status.INTERNAL if refused else status_of_http(described.status)
    return CallError(status, f"{described.message}\n{package}.{described.type}")


class _Prepared:
    """A request and its target."""

    __slots__ = ("asked", "target")

    def __init__(self, target: Target, asked: InferenceRequest) -> None:
        self.target = target
        self.asked = asked


class GrpcInferenceApi:
    """Makes requests from the messages that the service's methods get."""

    def __init__(self, source: TorchServeSource, targets: Targets, headers: StandingHeaders) -> None:
        self.targets = targets
        self.options = source.options
        self.server = source.server
        self.new_id = headers.new_id

    def request(self, message: ReceivedPredictions, sequence: SequencePosition = NO_SEQUENCE) -> _Prepared:
        """Return the request in a message. Raises TorchServeError for a model that cannot answer."""
        if not message.model_name:
            raise bad_request("Parameter model_name is required.")
        target = self.targets.find(message.model_name, message.model_version)
        parts = parts_of(message)
        if not target.handler:
            return _Prepared(target, self._by_name(message.model_name, target, parts))
        parameters: dict[str, ParameterValue] = {
            "torchserve_parts": orjson.dumps([(name, None, None) for name in parts]).decode(),
        }
        if sequence.id:
            parameters["torchserve_headers"] = orjson.dumps(self._sequence_headers(sequence)).decode()
        asked = InferenceRequest(
            message.model_name,
            {INPUT: target.tensor(list(parts.values()))},
            target.number,
            self.new_id(),
            (),
            parameters,
            sequence=sequence if target.config.HasField("sequence_batching") else NO_SEQUENCE,
        )
        return _Prepared(target, asked)

    def _by_name(self, model: str, target: Target, parts: Mapping[str, bytes]) -> InferenceRequest:
        """Return the request to a model with other inputs. Each part is the JSON value of the input with its name."""
        try:
            values = {name: orjson.loads(value) for name, value in parts.items()}
        except orjson.JSONDecodeError:
            raise bad_request(f"model '{model}' takes its inputs by their names, each as JSON") from None
        inputs, parameters = by_name(target.config, values)
        return InferenceRequest(model, inputs, target.number, self.new_id(), parameters=parameters)

    def _sequence_headers(self, sequence: SequencePosition) -> list[tuple[str, str]]:
        options = self.options
        headers = [(options.header_key_sequence_id, str(sequence.id))]
        if sequence.start:
            headers.append((options.header_key_sequence_start, "true"))
        if sequence.end:
            headers.append((options.header_key_sequence_end, "true"))
        return headers

    def ping(self, server: InferenceServer, request: Empty) -> TorchServeHealthResponse:
        status = "Healthy" if self.targets.healthy() else "Unhealthy"
        return TorchServeHealthResponse(health=orjson.dumps({"status": status}, option=orjson.OPT_INDENT_2).decode())


class PredictionCall(Call):
    """One request and its answer. If the method `streams`, each piece of the answer is one message. Otherwise one message has
    all pieces of a streaming handler."""

    __slots__ = ("api", "pieces", "queued_bytes", "received", "request", "stream_flow", "streams", "waiting")

    def __init__(
        self,
        api: GrpcInferenceApi,
        streams: bool,
        connection: StreamConnection,
        stream_id: int,
        head: CallHead,
        services: CallServices,
        method: Method,
    ) -> None:
        Call.__init__(self, connection, stream_id, head, services, method)
        self.api = api
        self.streams = streams
        self.received: ReceivedPredictions | None = None
        self.waiting: asyncio.Task[None] | None = None  # the task that waits for the model's first workers
        self.request: InFlightRequest | None = None
        self.pieces: list[bytes] = []
        self.stream_flow: ResponseFlow | None = None
        self.queued_bytes = 0  # bytes of the flow that are in `outgoing`

    @property
    def flow(self) -> ResponseFlow | None:
        """Return the flow that slows down a streaming model."""
        return self.stream_flow

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.received is not None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message")
        self.received = parse_request(body, start)
        if not self.services.authoriser.open:
            self.authorise(self.received.model_name)

    def half_closed(self) -> None:
        if self.received is None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message, but none came")
        try:
            self._begin(self.api.request(self.received))
        except WorkersStarting as error:
            self.waiting = asyncio.get_running_loop().create_task(self._begin_later(error.started))

    async def _begin_later(self, started: asyncio.Event) -> None:
        try:
            await started.wait()
            self.waiting = None
            self._begin(self.api.request(self.received))
        except Exception as error:
            self.fail_because(error)

    def _begin(self, prepared: _Prepared) -> None:
        self.received = None
        if prepared.target.streams:
            self.stream_flow = ResponseFlow()
        self.request = request = InFlightRequest(prepared.asked, self, prepared.target.observers)
        self.services.server.infer(request, "grpc", self.connection.transport, self.head.headers)

    def on_response(self, answer: Answer, final: bool) -> None:
        if self.answered:
            return
        try:
            if isinstance(answer, Exception):
                raise without_traceback(answer)
            if isinstance(answer, InferenceResponse):
                self._take(answer, final)
            elif self.streams:
                self.succeed()
            else:
                self._respond_once()
        except Exception as error:
            self.fail_because(error)

    def _take(self, response: InferenceResponse, final: bool) -> None:
        piece = body_of(response, self.api.options.max_response_size)
        if self.streams:
            self.respond_with(PredictionResponse(prediction=piece), final)
            if self.outgoing and not final:
                self.queued_bytes += response.size
                return
        else:
            self.pieces.append(piece)
            if final:
                self._respond_once()
        if self.stream_flow is not None and response.size:
            self.stream_flow.note_taken(response.size)

    def _respond_once(self) -> None:
        self.respond_with(PredictionResponse(prediction=b"".join(self.pieces)), True)

    def respond_with(self, message: PredictionResponse, final: bool) -> None:
        data = message.SerializeToString()
        self.respond((data,), len(data), final)

    def drained(self) -> None:
        if self.stream_flow is not None:
            self.stream_flow.note_taken(self.queued_bytes)
        self.queued_bytes = 0

    def fail_because(self, error: Exception) -> None:
        ended = call_error(error)
        self.fail(ended.status, ended.message)

    def abandon(self) -> None:
        """Cancel the request, and break the cycle of references between the request and this call."""
        request, self.request = self.request, None
        if self.waiting is not None:
            self.waiting.cancel()
        if self.stream_flow is not None:
            self.stream_flow.close()
        if request is not None and not request.finished:
            request.cancel()


class SequenceCall(Call):
    """StreamPredictions2: many requests, answered in order. An error is sent in the status of an answer."""

    __slots__ = ("api", "flow", "flushing", "in_order", "queued_bytes")
    client_streaming = True

    def __init__(
        self,
        api: GrpcInferenceApi,
        connection: StreamConnection,
        stream_id: int,
        head: CallHead,
        services: CallServices,
        method: Method,
    ) -> None:
        Call.__init__(self, connection, stream_id, head, services, method)
        self.api = api
        self.flow = ResponseFlow()
        self.in_order: deque[_Pending] = deque()
        self.queued_bytes = 0  # bytes of the flow that are in `outgoing`
        self.flushing = False

    def message(self, body: "bytes | memoryview", start: int) -> None:
        message = parse_request(body, start)
        if not self.services.authoriser.open:
            self.authorise(message.model_name)
        sequence = self._sequence(message)
        pending = _Pending(self, str(sequence.id), self.message_memory)
        self.in_order.append(pending)
        self.connection.limit.pending_requests += 1
        try:
            if not sequence.id:
                raise bad_request("Parameter sequenceId is required.")
            self._begin(pending, message, sequence)
        except WorkersStarting as error:
            later = self._begin_later(error.started, pending, message, sequence)
            pending.waiting = asyncio.get_running_loop().create_task(later)
        except Exception as error:
            pending.refuse(error)

    def _begin(self, pending: "_Pending", message: ReceivedPredictions, sequence: SequencePosition) -> None:
        prepared = self.api.request(message, sequence)
        pending.request = InFlightRequest(prepared.asked, pending, prepared.target.observers)
        self.services.server.infer(pending.request, "grpc", self.connection.transport, self.head.headers)

    async def _begin_later(
        self, started: asyncio.Event, pending: "_Pending", message: ReceivedPredictions, sequence: SequencePosition
    ) -> None:
        try:
            await started.wait()
            pending.waiting = None
            self._begin(pending, message, sequence)
        except Exception as error:
            pending.refuse(error)

    def _sequence(self, message: ReceivedPredictions) -> SequencePosition:
        """Return the sequence of a request. A request that starts a sequence without an id gets a new id."""
        options = self.api.options
        parts = parts_of(message)
        start = _is_true(parts, options.header_key_sequence_start)
        end = _is_true(parts, options.header_key_sequence_end)
        identifier = message.sequence_id or (f"ts-seq-{self.api.new_id()}" if start else "")
        return SequencePosition(identifier, start or not message.sequence_id, end)

    def wants_more(self) -> bool:
        if len(self.in_order) + len(self.outgoing or ()) >= MAX_PENDING_REQUESTS:
            return False
        return not self.connection.limit.must_wait(self)

    def is_idle(self) -> bool:
        return not self.in_order

    def half_closed(self) -> None:
        if not self.in_order:
            self.succeed()

    def drained(self) -> None:
        self.flow.note_taken(self.queued_bytes)
        self.queued_bytes = 0
        self.resume()

    def flush(self) -> None:
        """Send the answers that are ready, in the order of their requests."""
        if self.flushing:
            return
        self.flushing = True
        while self.in_order and not self.answered:
            first = self.in_order[0]
            self._send(first)
            if not first.done:
                break
            if self.in_order:  # empty if the call has ended meanwhile
                self.in_order.popleft()
                self.connection.limit.requests_ended()
                self.give(first.memory)
        self.flushing = False
        self.resume()

    def _send(self, pending: "_Pending") -> None:
        while pending.ready and not self.answered:
            data, counted = pending.ready.popleft()
            self.respond((data,), len(data), final=False)
            if self.outgoing:
                self.queued_bytes += counted
            elif counted:
                self.flow.note_taken(counted)

    def fail_because(self, error: Exception) -> None:
        ended = call_error(error)
        self.fail(ended.status, ended.message)

    def abandon(self) -> None:
        self.flow.close()
        pending, self.in_order = self.in_order, deque()
        for one in pending:
            if one.waiting is not None:
                one.waiting.cancel()
            if one.request is not None:
                one.request.cancel()
        if pending:
            self.connection.limit.requests_ended(len(pending))


class _Pending:
    """A request of a stream, and its serialised answers, each with its bytes in the flow. Answers wait for their turn."""

    __slots__ = ("call", "done", "flow", "memory", "ready", "request", "sequence", "waiting")

    def __init__(self, call: SequenceCall, sequence: str, memory: int) -> None:
        self.call = call
        self.flow = call.flow
        self.sequence = sequence
        self.memory = memory  # bytes of the server's memory for requests
        self.ready: deque[tuple[bytes, int]] = deque()
        self.waiting: asyncio.Task[None] | None = None  # the task that waits for the model's first workers
        self.request: InFlightRequest | None = None
        self.done = False

    def on_response(self, answer: Answer, final: bool) -> None:
        if self.call.answered:
            return
        try:
            if isinstance(answer, Exception):
                raise without_traceback(answer)
            if isinstance(answer, InferenceResponse):
                piece = body_of(answer, self.call.api.options.max_response_size)
                self._add(PredictionResponse(prediction=piece), answer.size)
        except Exception as error:
            self._add_error(error)
        if final:
            self.done = True
            self.request = None  # the request refers to this object
        self.call.flush()

    def refuse(self, error: Exception) -> None:
        """Answer a request that no model has accepted."""
        self.request = None
        self._add_error(error)
        self.done = True
        self.call.flush()

    def _add_error(self, error: Exception) -> None:
        ended = call_error(error)
        message, _, _ = ended.message.partition("\n")  # only the status of a whole call has the class
        self._add(PredictionResponse(status=RpcStatus(code=int(ended.status), message=message)), 0)

    def _add(self, message: PredictionResponse, counted: int) -> None:
        if self.sequence:
            message.sequence_id = self.sequence
        self.ready.append((message.SerializeToString(), counted))


def parse_request(body: "bytes | memoryview", start: int) -> ReceivedPredictions:
    message = ReceivedPredictions()
    try:
        message.ParseFromString(bytes(body[start:]))
    except DecodeError:
        raise invalid("the message is not a PredictionsRequest in protobuf's encoding") from None
    return message


def parts_of(message: ReceivedPredictions) -> dict[str, bytes]:
    """Return the parts of a request in the order in which they were sent."""
    return {entry.key: entry.value for entry in message.input}


def _is_true(parts: Mapping[str, bytes], name: str) -> bool:
    return name in parts and parts[name].lower() == b"true"


def inference_methods(api: GrpcInferenceApi) -> Callable[[str], Method]:
    """Return a function that finds the method for a path: methods of TorchServe, of KServe under both names, and of gRPC."""
    service = f"{INFERENCE}.InferenceAPIsService"
    table = [
        Method("Ping", "health", UnaryCall, Empty, api.ping),
        Method("Predictions", "inference", lambda *arguments: PredictionCall(api, False, *arguments), large=True),
        Method("StreamPredictions", "inference", lambda *arguments: PredictionCall(api, True, *arguments), large=True),
        Method("StreamPredictions2", "inference", lambda *arguments: SequenceCall(api, *arguments), large=True),
    ]
    methods = {f"/{service}/{method.name}": method for method in table}
    for name in _OPEN_METHODS if api.options.open_inference_protocol else ():
        known = f"/inference.GRPCInferenceService/{name}"
        methods[known] = methods[f"/{OPEN_INFERENCE}/{name}"] = METHODS[known]
    methods |= {path: method for path, method in METHODS.items() if path.startswith("/grpc.health.")}
    reflected = Reflection({**(V2_SERVICES if api.options.open_inference_protocol else {}), service: POOL})
    methods |= {f"/{method.name}": method for method in reflected.methods()}
    return lambda path: methods.get(path) or Method(path[:200], "", UnknownCall)

"""The methods of Triton's GRPCInferenceService: path -> how the call runs. A new method is one line in the table below."""

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from serving.errors import ServingError, invalid, unsupported
from serving.frontends.grpc_call import Call, CallError
from serving.frontends.grpc_status import Status
from serving.frontends.grpc_wire import varint
from serving.request import InferenceRequest, InferenceResponse
from serving.server import InferenceServer

MAX_UNANSWERED = 256  # requests of one stream that the client may send before it takes the answers
_INFER_RESPONSE = bytes([2 << 3 | 2])  # ModelStreamInferResponse.infer_response


class Method(NamedTuple):
    name: str
    group: str  # of --grpc-restricted-protocol
    call: type[Call]
    request: Any = None  # the message class, for PlainCall
    handle: Callable[[InferenceServer, Any], Any] | None = None  # -> response message, or a coroutine of one


class PlainCall(Call):
    """One request message, one response message, by protobuf. The handler decodes, calls, encodes."""

    __slots__ = ("received", "task")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.received: Any = None
        self.task: asyncio.Task[None] | None = None

    def message(self, body: "bytes | bytearray", start: int) -> None:
        if self.received is not None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message")
        self.received = self.method.request()
        try:
            self.received.ParseFromString(bytes(memoryview(body)[start:]))
        except DecodeError:
            raise invalid(f"the message is not a {self.received.DESCRIPTOR.name} in protobuf's encoding") from None

    def half_closed(self) -> None:
        if self.received is None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message, but none came")
        self.authorise(_model_of(self.received))
        assert self.method.handle is not None
        result = self.method.handle(self.frontend.server, self.received)
        if inspect.iscoroutine(result):
            self.task = asyncio.get_running_loop().create_task(self._respond_later(result))
        else:
            self._respond_with(result)

    async def _respond_later(self, result: Any) -> None:
        try:
            self._respond_with(await result)
        except Exception as error:
            self.fail_because(error)

    def _respond_with(self, response: Any) -> None:
        data = response.SerializeToString()
        self.respond((data,), len(data))


def _model_of(message: Any) -> str:
    """The model that a request is about, if any."""
    return str(getattr(message, "model_name", "") or getattr(message, "name", ""))


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
        if self.request is not None:
            self.request.cancel()


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
        self.done = final
        self.call.flush()


class UnknownCall(Call):
    """A method that this server does not have."""

    __slots__ = ()

    def opened(self) -> None:
        super().opened()
        self.fail(Status.UNIMPLEMENTED, f"this server does not have the method '{self.method.name}'")

    def message(self, body: "bytes | bytearray", start: int) -> None:
        """Never called: the call is answered when it opens."""


# -- handlers --------------------------------------------------------------------------------------------------------
def _server_live(server: InferenceServer, request: Any) -> Any:
    return pb.ServerLiveResponse(live=server.live())


def _server_ready(server: InferenceServer, request: Any) -> Any:
    return pb.ServerReadyResponse(ready=server.ready())


def _model_ready(server: InferenceServer, request: Any) -> Any:
    return pb.ModelReadyResponse(ready=server.model_ready(request.name, request.version))


def _server_metadata(server: InferenceServer, request: Any) -> Any:
    return server.metadata()


def _model_metadata(server: InferenceServer, request: Any) -> Any:
    return server.model_metadata(request.name, request.version)


def _model_config(server: InferenceServer, request: Any) -> Any:
    return pb.ModelConfigResponse(config=server.model_config(request.name, request.version))


def _model_statistics(server: InferenceServer, request: Any) -> Any:
    return server.model_statistics(request.name, request.version)


def _repository_index(server: InferenceServer, request: Any) -> Any:
    _refuse_repository_name(request)
    return server.repository_index(request.ready)


async def _repository_model_load(server: InferenceServer, request: Any) -> Any:
    _refuse_repository_name(request)
    config = ""
    files: dict[str, bytes] = {}
    for key, parameter in request.parameters.items():
        if key == "config":
            config = _load_parameter(key, parameter, "string_param")
        elif key.startswith("file:"):
            files[key] = _load_parameter(key, parameter, "bytes_param")
        else:
            raise invalid(f"unrecognized load parameter '{key}'; expected 'config' or 'file:<version>/<name>'")
    await server.load_model(request.model_name, config, files)
    return pb.RepositoryModelLoadResponse()


async def _repository_model_unload(server: InferenceServer, request: Any) -> Any:
    _refuse_repository_name(request)
    unload_dependents = False
    for key, parameter in request.parameters.items():
        if key != "unload_dependents":
            raise invalid(f"unrecognized unload parameter '{key}'; expected 'unload_dependents'")
        unload_dependents = _load_parameter(key, parameter, "bool_param")
    await server.unload_model(request.model_name, unload_dependents)
    return pb.RepositoryModelUnloadResponse()


def _load_parameter(key: str, parameter: Any, expected: str) -> Any:
    if parameter.WhichOneof("parameter_choice") != expected:
        raise invalid(f"invalid value type for parameter '{key}', expected {expected}.")
    return getattr(parameter, expected)


def _refuse_repository_name(request: Any) -> None:
    if request.repository_name:
        raise unsupported("'repository_name' specification is not supported")


_TABLE = [
    Method("ServerLive", "health", PlainCall, pb.ServerLiveRequest, _server_live),
    Method("ServerReady", "health", PlainCall, pb.ServerReadyRequest, _server_ready),
    Method("ModelReady", "health", PlainCall, pb.ModelReadyRequest, _model_ready),
    Method("ServerMetadata", "metadata", PlainCall, pb.ServerMetadataRequest, _server_metadata),
    Method("ModelMetadata", "metadata", PlainCall, pb.ModelMetadataRequest, _model_metadata),
    Method("ModelConfig", "model-config", PlainCall, pb.ModelConfigRequest, _model_config),
    Method("ModelStatistics", "statistics", PlainCall, pb.ModelStatisticsRequest, _model_statistics),
    Method("ModelInfer", "inference", InferCall),
    Method("ModelStreamInfer", "inference", StreamInferCall),
    Method("RepositoryIndex", "model-repository", PlainCall, pb.RepositoryIndexRequest, _repository_index),
    Method("RepositoryModelLoad", "model-repository", PlainCall, pb.RepositoryModelLoadRequest, _repository_model_load),
    Method(
        "RepositoryModelUnload",
        "model-repository",
        PlainCall,
        pb.RepositoryModelUnloadRequest,
        _repository_model_unload,
    ),
]
METHODS: dict[str, Method] = {f"/inference.GRPCInferenceService/{method.name}": method for method in _TABLE}


def find_method(path: str) -> Method:
    """The method of a path; one that answers UNIMPLEMENTED where there is none."""
    return METHODS.get(path) or Method(path[:200], "", UnknownCall)

"""The methods of Triton's GRPCInferenceService: path -> how the call runs. A new method is one line in the table below."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import invalid, unsupported
from serving.frontends.grpc import health as grpc_health
from serving.frontends.grpc import settings, shared_memory
from serving.frontends.grpc.call import Call, CallError
from serving.frontends.grpc.infer import InferCall, StreamInferCall
from serving.frontends.grpc.reflection import ReflectionCall
from serving.frontends.grpc.status import Status
from serving.server import InferenceServer


class Method(NamedTuple):
    name: str
    group: str  # of --grpc-restricted-protocol
    call: type[Call]
    request: Any = None  # the message class, for PlainCall
    handle: Callable[[InferenceServer, Any], Any] | None = None  # -> response message, or a coroutine of one
    large: bool = False  # takes messages up to --grpc-max-message-size, and not only CONTROL_BODY


class PlainCall(Call):
    """One request message, one response message, by protobuf. The handler decodes, calls, encodes."""

    __slots__ = ("received", "task")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.received: Any = None
        self.task: asyncio.Task[None] | None = None

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.received is not None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message")
        self.received = self.method.request()
        try:
            self.received.ParseFromString(bytes(body[start:]))
        except DecodeError:
            raise invalid(f"the message is not a {self.received.DESCRIPTOR.name} in protobuf's encoding") from None

    def half_closed(self) -> None:
        if self.received is None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message, but none came")
        # The name in a request about shared memory is a region's.
        self.authorise(None if self.method.group == "shared-memory" else _model_of(self.received))
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


class UnknownCall(Call):
    """A method that this server does not have."""

    __slots__ = ()

    def opened(self) -> None:
        super().opened()
        self.fail(Status.UNIMPLEMENTED, f"this server does not have the method '{self.method.name}'")

    def message(self, body: "bytes | memoryview", start: int) -> None:
        """Never called: the call is answered when it opens."""


# -- handlers --------------------------------------------------------------------------------------------------------
def _server_live(server: InferenceServer, request: Any) -> Any:
    return pb.ServerLiveResponse(live=server.live())


async def _server_ready(server: InferenceServer, request: Any) -> Any:
    return pb.ServerReadyResponse(ready=await server.confirm_ready())


async def _model_ready(server: InferenceServer, request: Any) -> Any:
    return pb.ModelReadyResponse(ready=await server.confirm_model_ready(request.name, request.version))


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
    response = pb.RepositoryIndexResponse()
    for row in server.repository_index(request.ready):
        response.models.add(name=row.name, version=row.version, state=row.state, reason=row.reason)
    return response


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
    Method("ModelInfer", "inference", InferCall, large=True),
    Method("ModelStreamInfer", "inference", StreamInferCall, large=True),
    Method("RepositoryIndex", "model-repository", PlainCall, pb.RepositoryIndexRequest, _repository_index),
    Method(
        "RepositoryModelLoad",
        "model-repository",
        PlainCall,
        pb.RepositoryModelLoadRequest,
        _repository_model_load,
        large=True,
    ),
    Method(
        "RepositoryModelUnload",
        "model-repository",
        PlainCall,
        pb.RepositoryModelUnloadRequest,
        _repository_model_unload,
    ),
    Method("LogSettings", "logging", PlainCall, pb.LogSettingsRequest, settings.logging),
    Method("TraceSetting", "trace", PlainCall, pb.TraceSettingRequest, settings.trace),
    *[
        Method(name, "shared-memory", PlainCall, getattr(pb, f"{name}Request"), handle)
        for name, handle in (
            ("SystemSharedMemoryStatus", shared_memory.system_status),
            ("SystemSharedMemoryRegister", shared_memory.system_register),
            ("SystemSharedMemoryUnregister", shared_memory.system_unregister),
            ("CudaSharedMemoryStatus", shared_memory.cuda_status),
            ("CudaSharedMemoryRegister", shared_memory.cuda_register),
            ("CudaSharedMemoryUnregister", shared_memory.cuda_unregister),
        )
    ],
]
# gRPC's own services, which have the paths of their own
_STANDARD = [
    Method("grpc.health.v1.Health/Check", "health", PlainCall, grpc_health.HealthCheckRequest, grpc_health.check),
    Method("grpc.health.v1.Health/Watch", "health", grpc_health.WatchCall),
    Method("grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "metadata", ReflectionCall),
    Method("grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "metadata", ReflectionCall),
]
METHODS: dict[str, Method] = {f"/inference.GRPCInferenceService/{method.name}": method for method in _TABLE}
METHODS |= {f"/{method.name}": method for method in _STANDARD}


def find_method(path: str) -> Method:
    """The method of a path; one that answers UNIMPLEMENTED where there is none."""
    return METHODS.get(path) or Method(path[:200], "", UnknownCall)

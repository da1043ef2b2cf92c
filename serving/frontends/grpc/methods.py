"""The methods of Triton's GRPCInferenceService and of gRPC's standard services, by their paths."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from google.protobuf.message import DecodeError, Message
from grpc_health.v1.health_pb2 import HealthCheckRequest
from tritonclient.grpc import service_pb2 as pb

from serving.core.errors import invalid
from serving.frontends.grpc import handlers, health
from serving.frontends.grpc.call import Call, CallServices, Method
from serving.frontends.grpc.call_headers import CallHead
from serving.frontends.grpc.infer import InferCall, StreamInferCall
from serving.frontends.grpc.reflection import V2_SERVICES, Reflection
from serving.frontends.grpc.status import CallError, Status
from serving.frontends.http2.stream import StreamConnection


class UnaryCall(Call):
    """A call with one request message. The method's handler returns the response message."""

    __slots__ = ("received", "task")

    def __init__(
        self, connection: StreamConnection, stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> None:
        super().__init__(connection, stream_id, head, services, method)
        self.received: Message | None = None
        self.task: asyncio.Task[None] | None = None

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.received is not None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message")
        assert self.method.request is not None
        self.received = self.method.request()
        try:
            self.received.ParseFromString(bytes(body[start:]))
        except DecodeError:
            raise invalid(f"the message is not a {self.received.DESCRIPTOR.name} in protobuf's encoding") from None

    def half_closed(self) -> None:
        if self.received is None:
            raise CallError(Status.INVALID_ARGUMENT, f"{self.method.name} takes one message, but none came")
        # In a request about shared memory, `name` names a region, not a model.
        self.authorise(None if self.method.group == "shared-memory" else _model_of(self.received))
        assert self.method.handle is not None
        result = self.method.handle(self.services.server, self.received)
        if isinstance(result, Message):
            self._respond_with(result)
        else:
            self.task = asyncio.get_running_loop().create_task(self._respond_later(result))

    async def _respond_later(self, result: Coroutine[Any, Any, Message]) -> None:
        try:
            self._respond_with(await result)
        except Exception as error:
            self.fail_because(error)

    def _respond_with(self, response: Message) -> None:
        data = response.SerializeToString()
        self.respond((data,), len(data))


def _model_of(message: Message) -> str:
    """Return the name of a request's model, or ""."""
    return str(getattr(message, "model_name", "") or getattr(message, "name", ""))


class UnknownCall(Call):
    """A method that this server does not have."""

    __slots__ = ()

    def opened(self) -> None:
        super().opened()
        self.fail(Status.UNIMPLEMENTED, f"this server does not have the method '{self.method.name}'")

    def message(self, body: "bytes | memoryview", start: int) -> None:
        """Never called: the call is answered when it opens."""


_TABLE = [
    Method("ServerLive", "health", UnaryCall, pb.ServerLiveRequest, handlers.server_live),
    Method("ServerReady", "health", UnaryCall, pb.ServerReadyRequest, handlers.server_ready),
    Method("ModelReady", "health", UnaryCall, pb.ModelReadyRequest, handlers.model_ready),
    Method("ServerMetadata", "metadata", UnaryCall, pb.ServerMetadataRequest, handlers.server_metadata),
    Method("ModelMetadata", "metadata", UnaryCall, pb.ModelMetadataRequest, handlers.model_metadata),
    Method("ModelConfig", "model-config", UnaryCall, pb.ModelConfigRequest, handlers.model_config),
    Method("ModelStatistics", "statistics", UnaryCall, pb.ModelStatisticsRequest, handlers.model_statistics),
    Method("ModelInfer", "inference", InferCall, large=True),
    Method("ModelStreamInfer", "inference", StreamInferCall, large=True),
    Method("RepositoryIndex", "model-repository", UnaryCall, pb.RepositoryIndexRequest, handlers.repository_index),
    Method(
        "RepositoryModelLoad",
        "model-repository",
        UnaryCall,
        pb.RepositoryModelLoadRequest,
        handlers.repository_model_load,
        large=True,
    ),
    Method(
        "RepositoryModelUnload",
        "model-repository",
        UnaryCall,
        pb.RepositoryModelUnloadRequest,
        handlers.repository_model_unload,
    ),
    Method("LogSettings", "logging", UnaryCall, pb.LogSettingsRequest, handlers.log_settings),
    Method("TraceSetting", "trace", UnaryCall, pb.TraceSettingRequest, handlers.trace_setting),
    *[
        Method(name, "shared-memory", UnaryCall, getattr(pb, f"{name}Request"), handle)
        for name, handle in (
            ("SystemSharedMemoryStatus", handlers.system_shared_memory_status),
            ("SystemSharedMemoryRegister", handlers.system_shared_memory_register),
            ("SystemSharedMemoryUnregister", handlers.system_shared_memory_unregister),
            ("CudaSharedMemoryStatus", handlers.cuda_shared_memory_status),
            ("CudaSharedMemoryRegister", handlers.cuda_shared_memory_register),
            ("CudaSharedMemoryUnregister", handlers.cuda_shared_memory_unregister),
        )
    ],
]
# gRPC's standard services. Their method names include the service name.
_STANDARD = [
    Method("grpc.health.v1.Health/Check", "health", UnaryCall, HealthCheckRequest, health.check),
    Method("grpc.health.v1.Health/Watch", "health", health.WatchCall),
    *Reflection(V2_SERVICES).methods(),
]
METHODS: dict[str, Method] = {f"/inference.GRPCInferenceService/{method.name}": method for method in _TABLE}
METHODS |= {f"/{method.name}": method for method in _STANDARD}


def find_method(path: str) -> Method:
    """Return the method of a path. Calls of an unknown method end with UNIMPLEMENTED."""
    return METHODS.get(path) or Method(path[:200], "", UnknownCall)

"""grpc.health.v1.Health: Check returns whether the server is ready, and Watch streams each change.

Source: grpc.io, "GRPC Health Checking Protocol".
"""

import asyncio

from google.protobuf.message import DecodeError
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from serving.core.errors import invalid, not_found
from serving.frontends.grpc.call import Call, CallServices, Method
from serving.frontends.grpc.call_headers import CallHead
from serving.frontends.grpc.status import CallError, Status
from serving.frontends.http2.stream import StreamConnection
from serving.server.inference_server import InferenceServer

SERVICES = ("", "inference.GRPCInferenceService")
CHECK_INTERVAL_S = 0.5


async def check(server: InferenceServer, request: HealthCheckRequest) -> HealthCheckResponse:
    """Handle Health.Check. Raises NOT_FOUND for a service that this server does not have."""
    if request.service not in SERVICES:
        raise not_found(f"there is no service '{request.service[:200]}' to check")
    return HealthCheckResponse(status=await _status(server, request.service))


async def _status(server: InferenceServer, service: str) -> HealthCheckResponse.ServingStatus:
    if service not in SERVICES:
        return HealthCheckResponse.SERVICE_UNKNOWN
    return HealthCheckResponse.SERVING if await server.confirm_ready() else HealthCheckResponse.NOT_SERVING


class WatchCall(Call):
    """Health.Watch: sends the present status and each change, until the client cancels the call."""

    __slots__ = ("last_status", "service", "watcher")

    def __init__(
        self, connection: StreamConnection, stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> None:
        super().__init__(connection, stream_id, head, services, method)
        self.service: str | None = None
        self.last_status = 0
        self.watcher: asyncio.Task[None] | None = None

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.service is not None:
            raise CallError(Status.INVALID_ARGUMENT, "Watch takes one message")
        try:
            self.service = HealthCheckRequest.FromString(bytes(body[start:])).service
        except DecodeError:
            raise invalid("the message is not a HealthCheckRequest in protobuf's encoding") from None

    def half_closed(self) -> None:
        if self.service is None:
            raise CallError(Status.INVALID_ARGUMENT, "Watch takes one message, but none came")
        self.watcher = asyncio.get_running_loop().create_task(self._watch(self.service))

    async def _watch(self, service: str) -> None:
        while True:
            status = await _status(self.services.server, service)
            if status != self.last_status:
                self.last_status = status
                data = HealthCheckResponse(status=status).SerializeToString()
                self.respond((data,), len(data), final=False)
            if self.connection.draining:
                self.fail(Status.UNAVAILABLE, "the server is shutting down")
                return
            await asyncio.sleep(CHECK_INTERVAL_S)

    def abandon(self) -> None:
        if self.watcher is not None:
            self.watcher.cancel()

"""The worker's gRPC methods: the worker decodes ModelInfer, and forwards the calls of all other methods to the core.

A ModelInfer call that needs the core is forwarded, too, as one whole message.
"""

from functools import partial
from typing import cast

from serving.frontends.grpc import methods as core_methods
from serving.frontends.grpc.call import CallServices, Method
from serving.frontends.grpc.call_headers import CallHead, request_fields
from serving.frontends.grpc.infer import InferCall
from serving.frontends.grpc.message_stream import PREFIX_SIZE
from serving.frontends.grpc.methods import METHODS
from serving.frontends.grpc.status import CallError, Status
from serving.frontends.http2.connection import Connection
from serving.frontends.http2.forwarding import ForwardedStream
from serving.frontends.http2.stream import StreamConnection
from serving.workers.program.core_client import CoreClient, NeedsCoreError


class ForwardedCall(ForwardedStream):
    """A call that the core answers. timeout_s: the rest of its timeout, if it was not forwarded immediately."""

    __slots__ = ()

    def __init__(
        self,
        connection: StreamConnection,
        stream_id: int,
        head: CallHead,
        services: CallServices,
        method: Method,
        timeout_s: float | None = None,
    ) -> None:
        core = cast(CoreClient, services.server)
        peer = connection.transport.get_extra_info("peername")
        fields = request_fields(head, timeout_s)
        super().__init__(cast(Connection[CallHead], connection), stream_id, fields, partial(core.connect, "grpc", peer))


class WorkerInferCall(InferCall):
    """A call of ModelInfer. Its request is sent over the link. If it needs the core, the call is forwarded instead."""

    __slots__ = ("for_core",)

    def __init__(
        self, connection: StreamConnection, stream_id: int, head: CallHead, services: CallServices, method: Method
    ) -> None:
        super().__init__(connection, stream_id, head, services, method)
        self.for_core: bytes | None = None  # the message, if the core must decode it

    def message(self, body: "bytes | memoryview", start: int) -> None:
        if self.for_core is not None:
            raise CallError(Status.INVALID_ARGUMENT, "ModelInfer takes one message")
        try:
            super().message(body, start)
        except NeedsCoreError:
            self.for_core = bytes(body[start:])

    def half_closed(self) -> None:
        if self.for_core is None:
            super().half_closed()
        else:
            self._forward(self.for_core)

    def _forward(self, message: bytes) -> None:
        """Replace this call by a forwarded call."""
        left_s = None if self.ending is None else self.ending.left_s()
        forwarded = ForwardedCall(self.connection, self.id, self.head, self.services, self.method, left_s)
        cast(Connection[CallHead], self.connection).replace(forwarded)
        self.stop()
        self.closed()
        forwarded.opened()
        forwarded.receive(b"\0" + len(message).to_bytes(PREFIX_SIZE - 1, "big") + message, True)


_INFER = "/inference.GRPCInferenceService/ModelInfer"
_METHODS = {path: method._replace(call=ForwardedCall) for path, method in METHODS.items()}
_METHODS[_INFER] = METHODS[_INFER]._replace(call=WorkerInferCall)


def find_method(path: str) -> Method:
    """Return the method of a path. Calls of an unknown method end with UNIMPLEMENTED, as in the core."""
    return _METHODS.get(path) or core_methods.find_method(path)

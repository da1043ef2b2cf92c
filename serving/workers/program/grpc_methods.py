"""The worker's gRPC methods: ModelInfer is decoded here."""

from serving.frontends.grpc import methods
from serving.frontends.grpc.call import Method

_NATIVE = methods.METHODS["/inference.GRPCInferenceService/ModelInfer"]


def find_method(path: str) -> Method:
    """Return the method of a path."""
    if path == "/inference.GRPCInferenceService/ModelInfer":
        return _NATIVE
    return Method(path[:200], "", methods.UnknownCall)

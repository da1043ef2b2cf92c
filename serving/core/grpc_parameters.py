"""Writes parameters for the messages of KServe's gRPC protocol. Source: KServe, open inference protocol, InferParameter."""

from tritonclient.grpc import service_pb2 as pb


def set_parameter(parameter: pb.InferParameter, value: "str | int | float | bool") -> None:
    """Store a Python value in the member of InferParameter that fits its type."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value

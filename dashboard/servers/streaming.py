"""Streams the responses of a decoupled model over gRPC, because V2 over HTTP carries only one response.

Sources: KServe's GRPCInferenceService, Triton's ModelStreamInfer, docs/protocol/extension_parameters.md, and Triton's README of
decoupled models: the final response is marked, and may hold no outputs.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, NamedTuple

import grpc
from tritonclient.grpc import service_pb2 as pb

from dashboard.models import Server
from dashboard.servers.infer_key import bearer
from dashboard.shared.exceptions import DashboardError, Invalid
from repository.core.errors import InvalidExample
from repository.core.json_types import Json
from repository.core.tensors import Tensor, from_binary, to_binary

_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
_NO_BOUND = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
]
_FINAL = "triton_final_response"
_KINDS: dict[type, str] = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


class Part(NamedTuple):
    """One response. error: the reason why there is no response, else ""."""

    version: str
    outputs: list[Tensor]
    parameters: dict[str, Json]
    error: str = ""


def request_of(
    model: str, version: str, inputs: Iterable[Tensor], parameters: Mapping[str, Json]
) -> pb.ModelInferRequest:
    """Return the gRPC message of a request whose final response is marked. Raises Invalid as `message_of` does."""
    request = message_of(model, version, inputs, parameters)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    return request


def message_of(
    model: str, version: str, inputs: Iterable[Tensor], parameters: Mapping[str, Json]
) -> pb.ModelInferRequest:
    """Return the gRPC message of a request. Raises Invalid if gRPC cannot carry a parameter's value."""
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    for tensor in inputs:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(to_binary(tensor))
    for name, value in parameters.items():
        kind = _KINDS.get(type(value))
        if kind is None:
            raise Invalid(f"parameter '{name[:80]}': expected a text, a number, true or false")
        try:
            setattr(request.parameters[name], kind, value)
        except ValueError:
            raise Invalid(f"parameter '{name[:80]}': expected a number of at most 64 bits") from None
    return request


async def parts_of(server: Server, request: pb.ModelInferRequest, person: str = "") -> AsyncGenerator[Part, None]:
    """Yield each response when it arrives, until the final one or an error. Closing the generator cancels the request.

    person: for whom the request counts.
    """
    metadata = tuple((name.lower(), value) for name, value in bearer(server, person).items())
    async with grpc.aio.insecure_channel(server.grpc_url, options=_NO_BOUND) as channel:
        stream = channel.stream_stream(
            _METHOD,
            request_serializer=pb.ModelInferRequest.SerializeToString,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )(metadata=metadata)
        try:
            await stream.write(request)
            await stream.done_writing()
            async for answer in stream:
                part = _part(answer)
                if part.outputs or part.error:
                    yield part
                if part.error or part.parameters.get(_FINAL):
                    return
        except grpc.aio.AioRpcError as error:
            yield Part("", [], {}, _refusal(server, error))
        finally:
            stream.cancel()


def _part(answer: pb.ModelStreamInferResponse) -> Part:
    if answer.error_message:
        return Part("", [], {}, answer.error_message)
    response = answer.infer_response
    parameters = {name: _value(value) for name, value in response.parameters.items()}
    try:
        outputs = [
            Tensor(one.name, one.datatype, tuple(one.shape), from_binary(one.name, one.datatype, raw))
            for one, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        ]
    except (InvalidExample, ValueError, KeyError):
        raise DashboardError("the inference server's answer does not follow the V2 protocol") from None
    return Part(response.model_version, outputs, parameters)


def _value(parameter: Any) -> Json:
    kind = parameter.WhichOneof("parameter_choice")
    value: Json = getattr(parameter, kind) if kind else None
    return value


def _refusal(server: Server, error: grpc.aio.AioRpcError) -> str:
    if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in (error.details() or "").lower():
        return f"inference server {server.name} does not answer: nothing listens at its address"
    return error.details() or f"the inference server ended the stream with {error.code().name}"

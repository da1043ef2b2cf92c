"""KServe V2 over gRPC, with one channel and with tensors as raw contents.

Source: KServe V2 gRPC; Triton's grpc_service.proto.
"""

import contextlib
import re
from collections.abc import Iterable

import grpc
import grpc.aio
import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.listed_servers import Address
from repository.config.traffic import Remote
from serving.core.datatypes import DATATYPES, Tensor, datatype_of, raw_bytes
from serving.core.errors import ServingError, internal, invalid, unavailable
from serving.core.grpc_parameters import set_parameter
from serving.core.in_flight import InFlightRequest
from serving.core.request import Parameters
from serving.core.varints import varint
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.http_client import MAX_ANSWER
from serving.traffic.remotes.protocol import MAX_QUOTED, RemoteAnswer, RemoteProtocol, not_permitted, version_number
from serving.traffic.remotes.v2_http import array_of, parameters_of, tensor_of

_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", MAX_ANSWER),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.dns_min_time_between_resolutions_ms", 1000),  # not 30 s, because a name may get another address
    # These two options enable TCP_USER_TIMEOUT: a connection whose bytes are not acknowledged is closed after 5 s, not after a
    # quarter of an hour. Pings are rare, because servers treat more than one ping in five minutes as an attack.
    ("grpc.keepalive_time_ms", 300_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without this option, channels to one address share connections, even if their headers or certificates differ.
    ("grpc.use_local_subchannel_pool", 1),
)
_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OUT_OF_RANGE)
_PASSES = (
    *(grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.NOT_FOUND),
    *(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED),
)
_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_RAW_INPUT_CONTENTS = b"\x3a"  # the tag of field 7 of ModelInferRequest: bytes, preceded by their length
_NOT_CONNECTED = "failed to connect to all addresses"
_DISTRUST = re.compile("CERTIFICATE_VERIFY_FAILED: ([^:]+)")
_NO_PERMISSION = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class V2Grpc(RemoteProtocol):
    def __init__(self, remote: Remote, config: ModelConfig, access: RemoteAccess, memory: RequestMemory) -> None:
        self._address = address = access.address
        self._model, self._version = remote.model or config.name, remote.version
        headers = {name.lower(): value for name, value in access.headers}
        host = headers.pop("host", "")  # called ":authority" in HTTP/2
        options = (*_OPTIONS, ("grpc.default_authority", host)) if host else _OPTIONS
        self._metadata = tuple(headers.items())
        if address.tls:
            credentials = grpc.ssl_channel_credentials(access.ca or None, access.key or None, access.cert or None)
            self._channel = grpc.aio.secure_channel(address.authority, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(address.authority, options)
        self._call = self._channel.unary_unary(_METHOD)

    async def infer(self, request: InFlightRequest) -> RemoteAnswer:
        message = pb.ModelInferRequest(model_name=self._model, model_version=self._version, id=request.asked.id)
        for name, tensor in request.inputs.items():
            message.inputs.add(name=name, datatype=datatype_of(tensor).name, shape=tensor.shape)
        for name in request.asked.requested_outputs:
            message.outputs.add(name=name)
        for key, value in parameters_of(request).items():
            set_parameter(message.parameters[key], value)
        try:
            answer = await self._call(_with_contents(message, request.inputs.values()), metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            raise _failure(self._address, error) from None
        return _decode(self._address, answer)

    async def close(self) -> None:
        await self._channel.close()


def _with_contents(message: pb.ModelInferRequest, tensors: Iterable[Tensor]) -> bytes:
    """Return the bytes of a request. Tensors are appended to the serialized message as fields, so they are copied only once."""
    chunks: list[bytes | memoryview] = [message.SerializeToString()]
    for tensor in tensors:
        data = raw_bytes(tensor)
        chunks += (_RAW_INPUT_CONTENTS, varint(len(data)), data)
    return b"".join(chunks)


def _failure(address: Address, error: grpc.aio.AioRpcError) -> ServingError:
    """Return the error for the gRPC status of a call, by the rules of `protocol.refused`."""
    code = error.code()
    if code in _NO_PERMISSION:
        return unavailable(f"{not_permitted(address)} ({code.name})")
    details = error.details() or ""
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NOT_CONNECTED):
        return unavailable(f"the server at {address} cannot be reached: {_why_not_connected(details)}")
    detail = " ".join(details.split())[:MAX_QUOTED]
    message = f"the server at {address} answered with gRPC status {code.name}{detail and f': {detail}'}"
    if code in _REFUSALS:
        return invalid(message)
    return unavailable(message) if code in _PASSES else internal(message)


def _why_not_connected(details: str) -> str:
    """Return why a connection failed, in the words of `http_client`."""
    if found := _DISTRUST.search(details):
        return f"its certificate is not trusted ({found[1]})"
    if "Hostname Verification Check failed" in details:
        return "its certificate is not trusted (it is for another host)"
    return "it does not speak TLS" if "handshake failed" in details else "there is no connection to it"


def _decode(address: Address, content: bytes) -> RemoteAnswer:
    """Decode an answer. Raises INTERNAL if the answer is malformed."""
    with contextlib.suppress(DecodeError, ValueError, KeyError, OverflowError, TypeError, ServingError):
        answer = pb.ModelInferResponse.FromString(content)
        parameters: Parameters = {}
        for key, parameter in answer.parameters.items():
            kind = parameter.WhichOneof("parameter_choice")
            if kind is not None:
                parameters[key] = getattr(parameter, kind)
        outputs = {}
        raw = answer.raw_output_contents
        if raw and len(raw) != len(answer.outputs):
            raise ValueError
        for index, output in enumerate(answer.outputs):
            shape = tuple(output.shape)
            if raw:
                outputs[output.name] = tensor_of(output.datatype, shape, raw[index])
            else:
                outputs[output.name] = _typed(output).reshape(shape)
        return RemoteAnswer(outputs, version_number(answer.model_version), parameters)
    raise internal(f"the server at {address} answered with something other than outputs of the V2 protocol")


def _typed(output: pb.ModelInferResponse.InferOutputTensor) -> Tensor:
    """Return the elements of an output whose contents are not raw."""
    row = DATATYPES[output.datatype]
    contents = list(getattr(output.contents, row.contents))
    if row.name != "BYTES":
        return array_of(row.name, contents)
    found: Tensor = np.empty(len(contents), np.object_)
    found[:] = contents
    return found

"""ModelInferRequest bytes -> InferenceRequest, InferenceResponse -> ModelInferResponse bytes.

Clients repeat themselves: all of a request but its id and tensors is mostly the same bytes as last time, and a response's
names, datatypes and shapes too. Both are kept, so that protobuf runs once for each kind of request.
"""

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from serving.datatypes import datatype_of, serialize_bytes
from serving.errors import invalid, unsupported
from serving.frontends.grpc_contents import InputSpec, from_raw, input_spec, inputs_of
from serving.frontends.grpc_wire import malformed, raw_output_prefix, response_id, split_request
from serving.request import InferenceRequest, InferenceResponse, OnResponse, Parameters

_KEPT = 1024  # heads of requests, and of responses
_KEPT_SIZE = 4096  # bytes of one head
_COPIED = 64 * 1024  # bytes: smaller outputs are cheaper to copy than to reference
_RESERVED = ("triton_enable_empty_final_response",)

Inputs = dict[str, NDArray[Any]]


@dataclass(slots=True)
class RequestHead:
    """What a request says beside its id and data."""

    model_name: str
    model_version: str
    specs: list[InputSpec]
    requested: tuple[str, ...]
    parameters: Parameters
    options: dict[str, Any]  # fields of InferenceRequest that parameters set
    typed: bool  # at least one input has `contents`


class InferCodec:
    """The codec with what it keeps."""

    def __init__(self) -> None:
        self._request_heads: dict[bytes, RequestHead] = {}
        self._response_heads: dict[tuple[Any, ...], bytes] = {}

    # -- requests ----------------------------------------------------------------------------------------------------
    def decode(self, body: "bytes | bytearray", start: int, on_response: OnResponse) -> InferenceRequest:
        """The request whose message begins at `start`; INVALID_ARG or UNSUPPORTED for what is wrong with it."""
        parts = split_request(body, start)
        if parts is None:
            return self._decode_message(_parse(bytes(memoryview(body)[start:])), on_response)
        head = self._request_heads.get(parts.head)
        if head is None:
            message = _parse(parts.head)
            head = _request_head(message)
            if head.typed:
                message.id = _text(parts.id)
                message.raw_input_contents.extend(bytes(data) for data in parts.raw)
                return self._decode_message(message, on_response)
            _keep(self._request_heads, parts.head, head)
        return _request(head, _text(parts.id), _raw_inputs(head, parts.raw), on_response)

    def _decode_message(self, message: pb.ModelInferRequest, on_response: OnResponse) -> InferenceRequest:
        """The slow way: typed contents, or fields that we do not know."""
        head = _request_head(message)
        raw = list(message.raw_input_contents)
        if not head.typed:
            inputs = _raw_inputs(head, raw)
        elif raw:
            name = next(tensor.name for tensor in message.inputs if tensor.HasField("contents"))
            raise invalid(
                f"contents field must not be specified when using raw_input_contents for '{name}' "
                f"for model '{head.model_name}'"
            )
        else:
            inputs = inputs_of(message, head.specs)
        return _request(head, message.id, inputs, on_response)

    # -- responses ---------------------------------------------------------------------------------------------------
    def encode(self, response: InferenceResponse) -> tuple[list[Any], int]:
        """The message as buffers to be joined at once, and their size in bytes."""
        outputs = response.outputs
        key = (
            response.model_name,
            response.model_version,
            *[(name, array.dtype, array.shape) for name, array in outputs.items()],
        )
        head = None if response.parameters else self._response_heads.get(key)
        if head is None:
            head = _response_head(response)
            if not response.parameters:
                _keep(self._response_heads, key, head)
        parts: list[Any] = [head]
        size = len(head)
        if response.id:
            parts.append(response_id(response.id))
            size += len(parts[-1])
        for array in outputs.values():
            data, length = _raw_output(array)
            prefix = raw_output_prefix(length)
            parts += (prefix, data)
            size += len(prefix) + length
        return parts, size


def _keep(heads: dict[Any, Any], key: Any, head: Any) -> None:
    if isinstance(key, bytes) and len(key) > _KEPT_SIZE:
        return
    if len(heads) >= _KEPT:
        heads.clear()
    heads[key] = head


def _parse(data: bytes) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise malformed() from None
    return message


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise malformed() from None


def _request(head: RequestHead, identifier: str, inputs: Inputs, on_response: OnResponse) -> InferenceRequest:
    return InferenceRequest(
        head.model_name,
        inputs,
        on_response,
        head.model_version,
        identifier,
        head.requested,
        dict(head.parameters),
        **head.options,
    )


def _raw_inputs(head: RequestHead, raw: "list[bytes] | list[bytes | memoryview]") -> Inputs:
    if len(raw) < len(head.specs):
        name = head.specs[len(raw)].name
        raise invalid(f"unable to find data for input tensor '{name}' for model '{head.model_name}' in request.")
    if len(raw) > len(head.specs):
        raise invalid(
            f"expected {len(head.specs)} raw_input_contents for the inputs of model '{head.model_name}', got {len(raw)}"
        )
    return {spec.name: from_raw(data, spec, head.model_name) for spec, data in zip(head.specs, raw, strict=True)}


def _request_head(message: pb.ModelInferRequest) -> RequestHead:
    name = message.model_name
    specs = [input_spec(tensor, name) for tensor in message.inputs]
    names = {spec.name for spec in specs}
    if len(names) < len(specs):
        raise invalid(f"an input appears more than once in the request for model '{name}'")
    parameters, options = _parameters(message)
    requested = tuple(_requested(output) for output in message.outputs)
    typed = any(tensor.HasField("contents") for tensor in message.inputs)
    return RequestHead(name, message.model_version, specs, requested, parameters, options, typed)


def _requested(output: Any) -> str:
    """The name of a requested output; its parameters ask for extensions that this server does not have."""
    for key, meaning in (("classification", "classification"), ("shared_memory_region", "shared memory")):
        if key in output.parameters:
            raise unsupported(f"output '{output.name}' asks for {meaning}, which this server does not support")
    return str(output.name)


# -- request parameters ----------------------------------------------------------------------------------------------
# name -> the accepted members of InferParameter and the InferenceRequest field that it sets
_OPTIONS = {
    "sequence_id": (("int64_param", "uint64_param", "string_param"), "sequence_id"),
    "sequence_start": (("bool_param",), "sequence_start"),
    "sequence_end": (("bool_param",), "sequence_end"),
    "priority": (("int64_param", "uint64_param"), "priority"),
    "timeout": (("int64_param", "uint64_param"), "timeout_us"),
}


def _parameters(message: pb.ModelInferRequest) -> tuple[Parameters, dict[str, Any]]:
    """Parameters for the model, and those that the server itself understands."""
    parameters: Parameters = {}
    options: dict[str, Any] = {}
    for key, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key in _OPTIONS:
            accepted, field = _OPTIONS[key]
            if choice not in accepted:
                expected = " or ".join(accepted)
                raise invalid(f"invalid value type for '{key}' parameter, expected {expected}.")
            options[field] = getattr(parameter, choice)
        elif key.startswith("triton_") and key not in _RESERVED:
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
                f"with 'triton_' are allowed: {' '.join(_RESERVED)}"
            )
        elif choice is None:
            raise invalid(
                f"invalid value type for '{key}' parameter, expected int64_param, bool_param, double_param or string_param."
            )
        else:
            parameters[key] = getattr(parameter, choice)
    for field, key in (("priority", "priority"), ("timeout_us", "timeout")):
        if options.get(field, 0) < 0:
            raise invalid(f"invalid value for '{key}', expected value >= 0.")
    return parameters, options


# -- responses -------------------------------------------------------------------------------------------------------
def _response_head(response: InferenceResponse) -> bytes:
    """A ModelInferResponse without its id and raw tensors."""
    message = pb.ModelInferResponse(model_name=response.model_name, model_version=str(response.model_version))
    for name, array in response.outputs.items():
        message.outputs.add(name=name, datatype=datatype_of(array).name, shape=array.shape)
    for key, value in response.parameters.items():
        set_parameter(message.parameters[key], value)
    return bytes(message.SerializeToString())


def set_parameter(parameter: Any, value: "str | int | float | bool") -> None:
    """Store a Python value in the member of InferParameter that fits its type."""
    if isinstance(value, bool):
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _raw_output(array: NDArray[Any]) -> tuple[Any, int]:
    """A buffer of the array in row-major order, and its size in bytes."""
    kind = array.dtype.kind
    if kind in "OSU":
        data = serialize_bytes(array)
        return data, len(data)
    if array.nbytes <= _COPIED or not array.flags.c_contiguous:
        return array.tobytes(), array.nbytes
    return array, array.nbytes

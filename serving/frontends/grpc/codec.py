"""ModelInferRequest bytes -> InferenceRequest, InferenceResponse -> ModelInferResponse bytes.

Clients repeat themselves: all of a request but its id and tensors is mostly the same bytes as last time, and a response's
names, datatypes and shapes too. Both are kept, so that protobuf runs once for each kind of request.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb

from serving.core.datatypes import datatype_of, serialize_bytes
from serving.core.errors import invalid
from serving.core.request import InferenceRequest, InferenceResponse, OnResponse, Parameters
from serving.extensions.output_target import OutputRule, aim, output_rule, read_tensor
from serving.extensions.shared_memory import SharedMemory
from serving.frontends.grpc.contents import InputSpec, from_raw, input_spec, inputs_of, plain_parameters
from serving.frontends.grpc.wire import malformed, raw_output_prefix, response_id, split_request

_KEPT = 1024  # heads of requests, and of responses
_KEPT_SIZE = 4096  # bytes of one head
_COPIED = 64 * 1024  # bytes: smaller outputs are cheaper to copy than to reference

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
    rules: dict[str, OutputRule]  # of outputs to classify or to put into shared memory
    regions: int  # how many inputs lie in shared memory


class InferCodec:
    """The codec with what it keeps."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._request_heads: dict[bytes, RequestHead] = {}
        self._response_heads: dict[tuple[Any, ...], bytes] = {}

    # -- requests ----------------------------------------------------------------------------------------------------
    def decode(self, body: "bytes | memoryview", start: int, on_response: OnResponse) -> InferenceRequest:
        """The request whose message begins at `start`; INVALID_ARG or UNSUPPORTED for what is wrong with it."""
        parts = split_request(body, start)
        if parts is None:
            return self._decode_message(_parse(bytes(body[start:])), on_response)
        head = self._request_heads.get(parts.head)
        if head is None:
            message = _parse(parts.head)
            head = _request_head(message)
            if head.typed:
                message.id = _text(parts.id)
                message.raw_input_contents.extend(bytes(data) for data in parts.raw)
                return self._decode_message(message, on_response)
            _keep(self._request_heads, parts.head, head)
        return self._request(head, _text(parts.id), self._raw_inputs(head, parts.raw), on_response)

    def _decode_message(self, message: pb.ModelInferRequest, on_response: OnResponse) -> InferenceRequest:
        """The slow way: typed contents, or fields that we do not know."""
        head = _request_head(message)
        raw = list(message.raw_input_contents)
        if not head.typed:
            inputs = self._raw_inputs(head, raw)
        elif raw:
            name = next(tensor.name for tensor in message.inputs if tensor.HasField("contents"))
            raise invalid(
                f"contents field must not be specified when using raw_input_contents for '{name}' "
                f"for model '{head.model_name}'"
            )
        else:
            inputs = inputs_of(message, head.specs, self._memory)
        return self._request(head, message.id, inputs, on_response)

    def _request(self, head: RequestHead, identifier: str, inputs: Inputs, on_response: OnResponse) -> InferenceRequest:
        request = InferenceRequest(
            head.model_name,
            inputs,
            on_response,
            head.model_version,
            identifier,
            head.requested,
            dict(head.parameters),
            **head.options,
        )
        if head.rules:
            aim(request, head.rules, self._memory, [spec.region for spec in head.specs])
        return request

    def _raw_inputs(self, head: RequestHead, raw: "list[bytes] | list[bytes | memoryview]") -> Inputs:
        expected = len(head.specs) - head.regions
        if len(raw) < expected:
            name = [spec.name for spec in head.specs if spec.region is None][len(raw)]
            raise invalid(f"unable to find data for input tensor '{name}' for model '{head.model_name}' in request.")
        if len(raw) > expected:
            raise invalid(
                f"expected {expected} raw_input_contents for the inputs of model '{head.model_name}', got {len(raw)}"
            )
        if not head.regions:
            return {
                spec.name: from_raw(data, spec, head.model_name) for spec, data in zip(head.specs, raw, strict=True)
            }
        pieces = iter(raw)
        return {
            spec.name: from_raw(next(pieces), spec, head.model_name)
            if spec.region is None
            else read_tensor(self._memory, head.model_name, spec.name, spec.row, spec.shape, spec.region)
            for spec in head.specs
        }

    # -- responses ---------------------------------------------------------------------------------------------------
    def encode(self, response: InferenceResponse) -> tuple[list[Any], int]:
        """The message as buffers to be joined at once, and their size in bytes."""
        outputs = response.outputs
        key = (
            response.model_name,
            response.model_version,
            *[(name, array.dtype, array.shape) for name, array in outputs.items()],
        )
        head = None if response.parameters or response.placed else self._response_heads.get(key)
        if head is None:
            head = _response_head(response)
            if not response.parameters and not response.placed:
                _keep(self._response_heads, key, head)
        parts: list[Any] = [head]
        size = len(head)
        if response.id:
            parts.append(response_id(response.id))
            size += len(parts[-1])
        for name, array in outputs.items():
            # An output in shared memory has an empty place among the raw ones: clients count them.
            data, length = (b"", 0) if response.placed and name in response.placed else _raw_output(array)
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


def _request_head(message: pb.ModelInferRequest) -> RequestHead:
    name = message.model_name
    specs = [input_spec(tensor, name) for tensor in message.inputs]
    names = {spec.name for spec in specs}
    if len(names) < len(specs):
        raise invalid(f"an input appears more than once in the request for model '{name}'")
    parameters, options = _parameters(message)
    rules = _rules(message)
    typed = any(tensor.HasField("contents") for tensor in message.inputs)
    requested = tuple(dict.fromkeys(output.name for output in message.outputs))
    regions = sum(spec.region is not None for spec in specs)
    return RequestHead(name, message.model_version, specs, requested, parameters, options, typed, rules, regions)


def _rules(message: pb.ModelInferRequest) -> dict[str, OutputRule]:
    rules: dict[str, OutputRule] = {}
    for output in message.outputs:
        rule = output_rule(output.name, plain_parameters(output.parameters)) if output.parameters else None
        if rule is not None:
            rules.setdefault(output.name, rule)  # an output that is named twice: as in Triton
    return rules


# -- request parameters ----------------------------------------------------------------------------------------------
# name -> the accepted members of InferParameter and the InferenceRequest field that it sets
_OPTIONS = {
    "sequence_id": (("int64_param", "uint64_param", "string_param"), "sequence_id"),
    "sequence_start": (("bool_param",), "sequence_start"),
    "sequence_end": (("bool_param",), "sequence_end"),
    "priority": (("int64_param", "uint64_param"), "priority"),
    "timeout": (("int64_param", "uint64_param"), "timeout_us"),
    "triton_enable_empty_final_response": (("bool_param",), "empty_final_response"),
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
        elif key.startswith("triton_"):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
                "with 'triton_' are allowed: triton_enable_empty_final_response"
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
        output = message.outputs.add(name=name, datatype=datatype_of(array).name, shape=array.shape)
        if response.placed and name in response.placed:
            placed = response.placed[name]
            set_parameter(output.parameters["shared_memory_region"], placed.region)
            set_parameter(output.parameters["shared_memory_byte_size"], placed.byte_size)
            if placed.offset:
                set_parameter(output.parameters["shared_memory_offset"], placed.offset)
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
    return array.reshape(-1).view(np.uint8).data, array.nbytes

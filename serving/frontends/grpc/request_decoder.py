"""Decodes the bytes of a ModelInferRequest into an InferenceRequest.

Except for the id and the data of tensors, most requests have the bytes of an earlier request. The decoded form of these bytes
is cached, with the places of the tensors (`RequestForm`). A request of a cached form is compared with it, and not parsed. The
outermost layer of other requests is parsed by hand, so that tensors are not copied, and protobuf parses each head only once.
Source: KServe's grpc_service.proto, and protobuf's encoding (protobuf.dev/programming-guides/encoding).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import re2
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from serving.core.datatypes import Dtype, Tensor
from serving.core.errors import ServingError, invalid
from serving.core.output_target import OutputRule
from serving.core.request import NO_SEQUENCE, NO_TARGETS, InferenceRequest, Parameters, SequencePosition
from serving.core.varints import varint
from serving.extensions.shared_memory import SharedMemory
from serving.extensions.tensor_parameters import all_on_device, find_targets, output_rule, read_input
from serving.frontends.grpc.input_tensors import InputSpec, from_raw, input_spec, plain_parameters, typed_inputs
from serving.frontends.shared.bounded_cache import BoundedCache
from serving.frontends.shared.forwarded_headers import forward_headers

_KEPT = 1024  # the number of cached heads, and of cached forms
_KEPT_SIZE = 4096  # larger heads (in bytes) are not cached
_MAX_FIELDS = 16_384  # fields of a request are limited, because each costs time and, in protobuf, memory

# field number << 3 | wire type 2 (length-delimited)
_MODEL_NAME = 1 << 3 | 2
_MODEL_VERSION = 2 << 3 | 2
_ID = 3 << 3 | 2
_RAW_INPUT_CONTENTS = 7 << 3 | 2
_KNOWN_FIELDS = frozenset(number << 3 | 2 for number in range(1, 8))

Inputs = dict[str, Tensor]
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass
class RequestOptions:
    """The parameters that the protocol defines."""

    priority: int = 0
    timeout_us: int = 0
    sequence: SequencePosition = NO_SEQUENCE
    empty_final_response: bool = False


@dataclass
class RequestHead:
    """A request without its id and data.

    typed: whether an input has typed `contents`. rules: the rules of outputs to classify or to write to shared memory.
    regions: the number of inputs in shared memory.
    """

    model_name: str
    model_version: str
    specs: list[InputSpec]
    requested: tuple[str, ...]
    parameters: Parameters
    options: RequestOptions
    typed: bool
    rules: dict[str, OutputRule]
    regions: int


# A tensor of fixed size in the bytes of a request: its name, datatype and shape, the bytes between the previous tensor and its
# data, and the size of its data. A plain tuple, because CPython unpacks it fastest.
RawTensor = tuple[str, Dtype, tuple[int, ...], bytes, int]


@dataclass
class RequestForm:
    """Requests that differ only in the id and the data of their tensors. Their fields are in the order that most clients use:
    name and version of the model, the id, the rest of the head, the raw tensors."""

    head: RequestHead
    tensors: list[RawTensor]


# The key of a form: the bytes before the id, and the number of bytes after the id.
_FormKey = tuple[bytes, int]


class RequestDecoder:
    """Decodes the requests of all connections.

    memory: the registered shared memory regions. forwarded_headers: a pattern for the names of headers that become parameters
    of the request, or None.
    """

    def __init__(self, memory: SharedMemory, forwarded_headers: "re2._Regexp | None" = None) -> None:
        self._memory = memory
        self._forwarded_headers = forwarded_headers
        self._heads: BoundedCache[bytes, RequestHead] = BoundedCache(_KEPT)
        self._forms: BoundedCache[_FormKey, RequestForm] = BoundedCache(_KEPT)

    def decode(
        self, body: "bytes | memoryview", start: int, headers: Mapping[str, str] = NO_HEADERS
    ) -> InferenceRequest:
        """Return the request whose message begins at `start` of `body`. If `body` is a memoryview, the tensors are views of it.
        headers: the headers of the call. Raises INVALID_ARG or UNSUPPORTED if the request is wrong."""
        end = len(body)
        try:  # a request without a name, or a truncated request, has no form
            id_at = stop = start + 2 + body[start + 1]
            if body[id_at] == _MODEL_VERSION:
                id_at = stop = id_at + 2 + body[id_at + 1]
            if body[id_at] == _ID and body[id_at + 1] < 0x80:
                stop = id_at + 2 + body[id_at + 1]
        except IndexError:
            id_at = stop = end
        key = bytes(body[start:id_at]), end - stop
        form = self._forms.get(key)
        if form is None:
            return self._decode_unknown(body, start, id_at, stop, headers)
        copied = isinstance(body, bytes)  # slices of bytes are aligned copies
        inputs = {}
        at = stop
        for name, dtype, shape, before, size in form.tensors:
            begin = at + len(before)
            if body[at:begin] != before:
                return self._decode_unknown(body, start, id_at, stop, headers)
            at = begin + size
            array = np.ndarray(shape, dtype, body[begin:at])
            inputs[name] = array if copied or array.flags.aligned else array.copy()
        identifier = _text(bytes(body[id_at + 2 : stop])) if stop > id_at else ""
        return self._request(form.head, identifier, inputs, headers)

    def _decode_unknown(
        self, body: "bytes | memoryview", start: int, id_at: int, stop: int, headers: Mapping[str, str]
    ) -> InferenceRequest:
        """Decode a request of an unknown form, and cache the form. id_at, stop: where the id field begins and ends."""
        parts = _split_request(body, start)
        if parts is None:
            return self._decode_message(_parse(bytes(body[start:])), headers)
        head = self._heads.get(parts.head)
        if head is None:
            message = _parse(parts.head)
            head = _request_head(message)
            if head.typed:
                message.id = _text(parts.id)
                message.raw_input_contents.extend(bytes(data) for data in parts.raw)
                return self._decode_message(message, headers)
            if len(parts.head) <= _KEPT_SIZE:
                self._heads.remember(parts.head, head)
        inputs = self._raw_inputs(head, parts.raw)
        if len(parts.head) <= _KEPT_SIZE:
            form = _form_of(body, start, id_at, stop, head, parts)
            if form is not None:
                self._forms.remember((bytes(body[start:id_at]), len(body) - stop), form)
        return self._request(head, _text(parts.id), inputs, headers)

    def _decode_message(self, message: pb.ModelInferRequest, headers: Mapping[str, str]) -> InferenceRequest:
        """Decode a request with typed contents or unknown fields. Protobuf has parsed all of it."""
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
            inputs = typed_inputs(message, head.specs, self._memory)
        return self._request(head, message.id, inputs, headers)

    def _request(
        self, head: RequestHead, identifier: str, inputs: Inputs, headers: Mapping[str, str]
    ) -> InferenceRequest:
        targets = NO_TARGETS
        if head.rules:
            targets = find_targets(head.rules, self._memory, [spec.region for spec in head.specs])
        options = head.options
        request = InferenceRequest(
            head.model_name,
            inputs,
            head.model_version,
            identifier,
            head.requested,
            head.parameters,
            options.priority,
            options.timeout_us,
            options.sequence,
            targets,
            all_on_device(targets, head.requested) if targets else False,
            options.empty_final_response,
        )
        if self._forwarded_headers is not None:
            forward_headers(self._forwarded_headers, headers.items(), request)
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
            else read_input(self._memory, head.model_name, spec.name, spec.row, spec.shape, spec.region)
            for spec in head.specs
        }


# -- the outermost layer of the message ------------------------------------------------------------------------------
class RequestParts(NamedTuple):
    """The parts of a request. raw: raw_input_contents. id: in UTF-8. head: all other bytes, which most clients send unchanged
    with each request."""

    head: bytes
    id: bytes
    raw: "list[bytes | memoryview]"


def _malformed() -> ServingError:
    return invalid("the message is not a ModelInferRequest in protobuf's encoding")


def _split_request(body: "bytes | memoryview", start: int) -> RequestParts | None:
    """Return the parts of the ModelInferRequest that begins at `start`, or None if it has unknown fields. The raw tensors are
    aligned copies if `body` is bytes, and views if it is a memoryview. Raises INVALID_ARG if there are too many fields."""
    end = len(body)
    raw: list[bytes | memoryview] = []
    pieces: list[bytes] = []
    identifier = b""
    known = True
    position = kept = start
    try:
        for _ in range(_MAX_FIELDS):
            if position >= end:
                break
            tag = body[position]
            if tag not in _KNOWN_FIELDS:
                known = False
                position = _skip_unknown(body, position)
                continue
            length = body[position + 1]
            at = position + 2
            if length >= 0x80:
                length, at = _read_varint(body, position + 1)
            stop = at + length
            if stop > end:
                raise _malformed()
            if tag in (_RAW_INPUT_CONTENTS, _ID):
                if kept < position:
                    pieces.append(bytes(body[kept:position]))
                kept = stop
                if tag == _ID:
                    identifier = bytes(body[at:stop])
                else:
                    raw.append(body[at:stop])
            position = stop
    except IndexError:
        raise _malformed() from None
    if position < end:
        raise invalid(f"expected at most {_MAX_FIELDS} inputs, outputs, parameters and other fields in a request")
    if position > end:
        raise _malformed()
    if not known:
        return None
    if kept < end:
        pieces.append(bytes(body[kept:end]))
    return RequestParts(pieces[0] if len(pieces) == 1 else b"".join(pieces), identifier, raw)


def _form_of(
    body: "bytes | memoryview", start: int, id_at: int, stop: int, head: RequestHead, parts: RequestParts
) -> RequestForm | None:
    """Return the form of a decoded request, or None if its fields have another order, or a tensor is BYTES, empty or in shared
    memory."""
    if head.regions or not head.specs or not all(spec.row.itemsize and spec.elements for spec in head.specs):
        return None
    before_raw = [bytes((_RAW_INPUT_CONTENTS,)) + varint(len(data)) for data in parts.raw]
    middle = bytes(body[stop : len(body) - sum(map(len, before_raw)) - sum(map(len, parts.raw))])
    beginning = bytes(body[start:id_at])
    if beginning != _beginning(head) or parts.head != beginning + middle or parts.id != bytes(body[id_at + 2 : stop]):
        return None
    before_raw[0] = middle + before_raw[0]
    tensors = [
        (spec.name, spec.row.dtype, spec.shape, before, len(data))
        for spec, before, data in zip(head.specs, before_raw, parts.raw, strict=True)
    ]
    at = stop
    for *_, before, size in tensors:  # raw tensors may be between the other fields
        if body[at : at + len(before)] != before:
            return None
        at += len(before) + size
    return RequestForm(head, tensors)


def _beginning(head: RequestHead) -> bytes | None:
    """Return the encoded name and version that begin a request, or None if either length needs two bytes."""
    name, version = head.model_name.encode(), head.model_version.encode()
    if max(len(name), len(version)) >= 0x80:
        return None
    fields = bytes((_MODEL_NAME, len(name))) + name
    return fields + bytes((_MODEL_VERSION, len(version))) + version if version else fields


def _skip_unknown(body: "bytes | memoryview", position: int) -> int:
    """Return where the field after an unknown field begins."""
    tag, position = _read_varint(body, position)
    kind = tag & 7
    if kind == 0:
        while body[position] & 0x80:
            position += 1
        return position + 1
    if kind == 2:
        length, position = _read_varint(body, position)
        return position + length
    if kind in (1, 5):
        return position + (8 if kind == 1 else 4)
    raise _malformed()  # groups, which no proto3 message has


def _read_varint(body: "bytes | memoryview", position: int) -> tuple[int, int]:
    """Return the value at `position`, and the position after it. Values of 2^35 or more are malformed."""
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise _malformed()


# -- the request without its id and tensors ---------------------------------------------------------------------------
def _parse(data: bytes) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest()
    try:
        message.ParseFromString(data)
    except DecodeError:
        raise _malformed() from None
    return message


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _malformed() from None


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
            rules.setdefault(output.name, rule)  # if an output is named twice, the first rule counts, as in Triton
    return rules


# -- request parameters ----------------------------------------------------------------------------------------------
# name -> the accepted members of InferParameter
_OPTIONS = {
    "sequence_id": ("int64_param", "uint64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    "triton_enable_empty_final_response": ("bool_param",),
}


def _parameters(message: pb.ModelInferRequest) -> tuple[Parameters, RequestOptions]:
    """Return the custom parameters, and the parameters that the protocol defines."""
    parameters: Parameters = {}
    given: dict[str, Any] = {}
    for key, parameter in message.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key in _OPTIONS:
            accepted = _OPTIONS[key]
            if choice not in accepted:
                expected = " or ".join(accepted)
                raise invalid(f"invalid value type for '{key}' parameter, expected {expected}.")
            given[key] = getattr(parameter, choice)
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
    for key in ("priority", "timeout"):
        if given.get(key, 0) < 0:
            raise invalid(f"invalid value for '{key}', expected value >= 0.")
    sequence = SequencePosition(
        given.get("sequence_id", 0), given.get("sequence_start", False), given.get("sequence_end", False)
    )
    empty_final = given.get("triton_enable_empty_final_response", False)
    return parameters, RequestOptions(given.get("priority", 0), given.get("timeout", 0), sequence, empty_final)

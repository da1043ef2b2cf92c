"""The V2 inference request: JSON, Triton's inference header, with the binary data of tensors behind it.

decode(body, binary, ...) -> (InferenceRequest, InferHeader)      tensors are views of `binary` where they can be

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_{binary_data,parameters,schedule_policy,sequence}.md.
Nothing is allocated by a shape that a client claims before the data for it is there.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.datatypes import BY_CONFIG, Datatype, datatype, deserialize_bytes
from serving.core.errors import ServingError, invalid
from serving.core.output_target import MemoryRange, OutputRule
from serving.core.request import NO_SEQUENCE, NO_TARGETS, InferenceRequest, Parameters, SequencePosition
from serving.extensions.shared_memory import SharedMemory
from serving.extensions.tensor_parameters import (
    all_on_device,
    find_targets,
    memory_range_of,
    output_rule,
    read_input,
)
from serving.frontends.http1.message import Chunk
from serving.frontends.rest.json_input import (
    MAX_PARAMETERS,
    MAX_TENSORS,
    NotFlatError,
    array_from_json,
    check_count,
    is_array,
    load_json,
    numbers,
    split_arrays,
)

MAX_DIMS = 32
_CACHED_HEADER_SIZE = 2047  # bytes; what is longer is parsed by simdjson, whose arrays do not outlive their parser
_SPLIT_FROM = 2048  # bytes; a shorter body is faster parsed as it is

T = TypeVar("T")
JsonMembers = Mapping[str, object]
Arrays = Mapping[str, object]  # input -> its "data", where that does not stand in the header
NO_ARRAYS: Arrays = {}


class InputHeader(NamedTuple):
    """One input as announced. `binary_size`: its bytes in the binary part, -1 where its data is in `data` or in `region`."""

    name: str
    row: Datatype
    shape: tuple[int, ...]
    elements: int
    binary_size: int
    data: object
    region: MemoryRange | None = None


@dataclass(slots=True)
class InferHeader:
    """A request's JSON, checked. It is shared between requests with equal JSON, and never written to."""

    inputs: list[InputHeader]
    requested: tuple[str, ...] = ()
    binary: dict[str, bool] = field(default_factory=dict)  # requested output -> as binary data
    binary_default: bool = False
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    sequence: SequencePosition = NO_SEQUENCE
    rules: dict[str, OutputRule] = field(default_factory=dict)  # of outputs to classify or to put into shared memory


def decode(
    body: Chunk, binary: Chunk, model: str, version: str, memory: SharedMemory
) -> tuple[InferenceRequest, InferHeader]:
    """Return the request for `model` in its `version`, and its header, by which the response is encoded.

    body: the JSON. binary: the data of the inputs that announce a size in bytes, one after the other. memory: where inputs in
    shared memory are looked up. INVALID_ARG for what is wrong with the request in itself, NOT_FOUND for an unknown region;
    what the model asks of its inputs is checked by the server.
    """
    header, arrays = _read_header(body, len(binary) > 0)
    return _make_request(header, binary, model, version, memory, arrays), header


def _read_header(body: Chunk, has_binary: bool) -> tuple[InferHeader, Arrays]:
    """Return the header, and the data of inputs that stand in the JSON."""
    if has_binary and len(body) <= _CACHED_HEADER_SIZE:
        return _cached_header(bytes(body)), NO_ARRAYS
    if len(body) >= _SPLIT_FROM:
        try:
            return _read_flat_arrays(body)
        except (NotFlatError, ServingError):
            pass  # to be parsed whole, which also says best what is wrong
    header = check_header(load_json(body))
    arrays = {spec.name: spec.data for spec in header.inputs if spec.data is not None}
    header.inputs = [
        spec._replace(data=None) for spec in header.inputs
    ]  # or the parsed JSON would stay until the answer
    return header, arrays


def _read_flat_arrays(body: Chunk) -> tuple[InferHeader, Arrays]:
    """Do the same for a body whose inputs' data are flat arrays of numbers; NotFlatError for any other."""
    outline, texts = split_arrays(body)
    header = _cached_header(outline) if len(outline) <= _CACHED_HEADER_SIZE else check_header(load_json(outline))
    given = [spec for spec in header.inputs if spec.data is not None]
    # An array that is no input's data would shift the others.
    marks = [spec.data if isinstance(spec.data, list) else list(spec.data) for spec in given if is_array(spec.data)]
    if marks != [[number] for number in range(len(texts))] or len(marks) != len(given):
        raise NotFlatError
    return header, {spec.name: numbers(text, spec.row) for spec, text in zip(given, texts, strict=True)}


def decode_raw(config: ModelConfig, binary: Chunk, version: str) -> tuple[InferenceRequest, InferHeader]:
    """Return Triton's raw binary request, whose body is the data of the model's only input, or its one BYTES element.

    Source: Triton, docs/protocol/extension_binary_data.md, Raw Binary Request.
    """
    if len(config.input) == 1 and BY_CONFIG[config.input[0].data_type].name == "BYTES":
        binary = len(binary).to_bytes(4, "little") + bytes(binary)
    header = _raw_header(config, len(binary))
    return _make_request(header, binary, config.name, version), header


def _make_request(
    header: InferHeader,
    binary: Chunk,
    model: str,
    version: str,
    memory: SharedMemory | None = None,
    arrays: Arrays = NO_ARRAYS,
) -> InferenceRequest:
    inputs: dict[str, NDArray[Any]] = {}
    offset = 0
    for spec in header.inputs:
        if spec.region is not None:
            assert memory is not None
            inputs[spec.name] = read_input(memory, model, spec.name, spec.row, spec.shape, spec.region)
            continue
        if spec.binary_size < 0:
            inputs[spec.name] = array_from_json(
                spec.name, spec.row, spec.shape, spec.elements, arrays.get(spec.name, spec.data)
            )
            continue
        end = offset + spec.binary_size
        if end > len(binary):
            missing = end - len(binary)
            raise invalid(f"unexpected size for input '{spec.name}', expecting {missing} additional bytes")
        inputs[spec.name] = _tensor(spec, binary, offset)
        offset = end
    if offset != len(binary):
        raise invalid(f"unexpected additional input data: {len(binary) - offset} bytes after the last binary input")
    targets = NO_TARGETS
    if header.rules and memory is not None:
        targets = find_targets(header.rules, memory, [spec.region for spec in header.inputs])
    return InferenceRequest(
        model,
        inputs,
        version,
        header.id,
        header.requested,
        header.parameters,
        header.priority,
        header.timeout_us,
        header.sequence,
        targets,
        all_on_device(targets, header.requested) if targets else False,
    )


def _tensor(spec: InputHeader, binary: Chunk, offset: int) -> NDArray[Any]:
    row = spec.row
    if row.itemsize == 0:
        return deserialize_bytes(memoryview(binary)[offset : offset + spec.binary_size], spec.elements).reshape(
            spec.shape
        )
    array: NDArray[Any] = np.ndarray(spec.shape, row.dtype, binary, offset)
    if row.dtype.kind == "b":
        return np.not_equal(array.view(np.uint8), 0)  # a byte other than 0 and 1 is no valid numpy boolean
    # Backends hand the pointer to native code, which may want it aligned.
    return array if array.flags.aligned else array.copy()


@functools.lru_cache(maxsize=256)
def _cached_header(body: bytes) -> InferHeader:
    """Return the header of a JSON. Clients of binary data send the same one with each request."""
    return check_header(load_json(body))


def check_header(value: object) -> InferHeader:
    """Return the checked form of a request's JSON."""
    if not isinstance(value, dict):
        raise invalid("expected the request to be a JSON object")
    inputs = value.get("inputs")
    if not isinstance(inputs, list):
        raise invalid("expected 'inputs' to be an array of objects")
    check_count("'inputs'", inputs, MAX_TENSORS)
    header = InferHeader([_check_input(item) for item in inputs])
    names = {spec.name for spec in header.inputs}
    if len(names) != len(header.inputs):
        raise invalid("an input is given more than once")
    header.id = _checked("id", value.get("id", ""), str)
    _read_parameters(header, _parameters(value))
    _read_outputs(header, value.get("outputs", []))
    return header


def _check_input(item: object) -> InputHeader:
    if not isinstance(item, dict):
        raise invalid("expected each of 'inputs' to be an object")
    name = item.get("name")
    if not isinstance(name, str) or not name:
        raise invalid("expected each input to have a 'name'")
    row = datatype(item.get("datatype", ""))
    shape, count = _shape(name, row, item.get("shape"))
    parameters = _parameters(item)
    region = memory_range_of(f"input '{name}'", parameters)
    size = parameters.get("binary_data_size")
    if region is not None:
        if size is not None or "data" in item:
            raise invalid(f"input '{name}': expected only one of 'data', 'binary_data_size' and 'shared_memory_region'")
        return InputHeader(name, row, shape, count, -1, None, region)
    if size is None:
        if "data" not in item:
            raise invalid(f"input '{name}': expected 'data', or 'binary_data_size' in its parameters")
        return InputHeader(name, row, shape, count, -1, item["data"])
    if type(size) is not int or size < 0:
        raise invalid(f"input '{name}': expected 'binary_data_size' to be a number of bytes")
    if "data" in item:
        raise invalid(f"input '{name}': expected either 'data' or 'binary_data_size', got both")
    if row.itemsize and count * row.itemsize != size:
        expected = count * row.itemsize
        raise invalid(
            f"input byte size mismatch for input '{name}'. Expected {expected} for shape {list(shape)} of "
            f"{row.name}, got {size}"
        )
    return InputHeader(name, row, shape, count, size, None)


def _shape(name: str, row: Datatype, value: object) -> tuple[tuple[int, ...], int]:
    if not isinstance(value, list) or not all(type(dim) is int and dim >= 0 for dim in value):
        raise invalid(f"input '{name}': expected 'shape' to be an array of whole numbers, none of them negative")
    if len(value) > MAX_DIMS:
        raise invalid(f"input '{name}': expected at most {MAX_DIMS} dimensions, got {len(value)}")
    shape = tuple(value)
    count = math.prod(shape)
    # numpy bounds the product of the dims even where one of them is 0
    if (count or math.prod(filter(None, shape))) * max(row.itemsize, 8) >= 1 << 62:
        raise invalid(f"input '{name}': shape {list(shape)} has too many elements")
    return shape, count


def _read_parameters(header: InferHeader, parameters: JsonMembers) -> None:
    for name, value in parameters.items():
        if name == "binary_data_output":
            header.binary_default = _checked(name, value, bool)
        elif name == "sequence_start":
            header.sequence = header.sequence._replace(start=_checked(name, value, bool))
        elif name == "sequence_end":
            header.sequence = header.sequence._replace(end=_checked(name, value, bool))
        elif name == "sequence_id":
            header.sequence = header.sequence._replace(id=value if isinstance(value, str) else _unsigned(name, value))
        elif name == "priority":
            header.priority = _unsigned(name, value)
        elif name == "timeout":
            header.timeout_us = _unsigned(name, value)
        elif name.startswith("triton_"):
            raise invalid("parameters whose names start with 'triton_' are reserved")
        elif isinstance(value, str | int | float | bool):
            header.parameters[name] = value
        else:
            raise invalid(f"expected parameter '{name}' to be a string, a number or a boolean")


def _read_outputs(header: InferHeader, outputs: object) -> None:
    if not isinstance(outputs, list):
        raise invalid("expected 'outputs' to be an array of objects")
    check_count("'outputs'", outputs, MAX_TENSORS)
    for item in outputs:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise invalid("expected each of 'outputs' to be an object with a 'name'")
        parameters = _parameters(item)
        rule = output_rule(name, parameters)
        if rule is not None and rule.memory is not None and parameters.get("binary_data"):
            raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'binary_data'")
        binary = _checked("binary_data", parameters.get("binary_data", header.binary_default), bool)
        if name in header.binary:
            continue  # named twice: the first mention counts, as in Triton
        header.binary[name] = binary
        if rule is not None:
            header.rules[name] = rule
    header.requested = tuple(header.binary)


_NONE: JsonMembers = {}


def _parameters(value: JsonMembers) -> JsonMembers:
    parameters = value.get("parameters", _NONE)
    if not isinstance(parameters, dict):
        raise _wrong_type("parameters", dict)
    check_count("'parameters'", parameters, MAX_PARAMETERS)
    return parameters


def _checked(name: str, value: object, kind: type[T]) -> T:
    """Return the value, which must be of this kind."""
    if not isinstance(value, kind):
        raise _wrong_type(name, kind)
    return value


def _wrong_type(name: str, kind: type) -> ServingError:
    words = {str: "a string", bool: "a boolean", dict: "an object"}
    return invalid(f"expected '{name}' to be {words[kind]}")


def _unsigned(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise invalid(f"expected '{name}' to be a whole number of at least 0")
    return value


def _raw_header(config: ModelConfig, size: int) -> InferHeader:
    if len(config.input) != 1:
        raise invalid(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(config.input)} inputs in '{config.name}'"
        )
    tensor = config.input[0]
    row = BY_CONFIG[tensor.data_type]
    dims = [1, *tensor.dims] if config.max_batch_size else list(tensor.dims)
    if row.name == "BYTES":
        if math.prod(dims) != 1 or min(dims, default=1) < 1:
            raise invalid(
                f"For BYTE datatype raw input '{tensor.name}', the model must have input shape [1], it has {dims}"
            )
        return InferHeader([InputHeader(tensor.name, row, tuple(dims), 1, size, None)], binary_default=True)
    variable = [index for index, dim in enumerate(dims) if dim < 0]
    known = math.prod(dim for dim in dims if dim > 0)
    if len(variable) > 1 or (variable and size % (known * row.itemsize)):
        many = (
            "there are more than one variable-sized dimension" if len(variable) > 1 else f"{size} bytes do not fill it"
        )
        raise invalid(f"The shape of the raw input '{tensor.name}' can not be deduced because {many}")
    for index in variable:
        dims[index] = size // (known * row.itemsize)
    count = math.prod(dims)
    if count * row.itemsize != size:
        raise invalid(f"input '{tensor.name}' of shape {dims} needs {count * row.itemsize} bytes, got {size}")
    return InferHeader([InputHeader(tensor.name, row, tuple(dims), count, size, None)], binary_default=True)

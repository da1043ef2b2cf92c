"""The V2 inference request: JSON with Triton's binary tensor extension.

decode(body, binary, ...) -> (InferenceRequest, Plan)      tensors are views of `binary` where they can be

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_{binary_data,parameters,schedule_policy,sequence}.md.
Nothing is allocated by a shape that a client claims before the data for it is there.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    is_array,
    load_json,
    numbers,
    split_body,
    too_many,
)

MAX_DIMS = 32
_CACHED_PLAN_SIZE = 2047  # bytes; what is longer is parsed by simdjson, whose arrays do not outlive their parser
_OUTLINED_FROM = 2048  # bytes; a shorter body is faster parsed as it is
_SCALARS = (str, int, float, bool)


Arrays = Mapping[str, Any]  # input -> its "data", where that does not stand in the plan
NO_ARRAYS: Arrays = {}


class InputPlan(NamedTuple):
    """One input as announced. `size`: its bytes in the binary part, -1 when its data is in `data` or in `region`."""

    name: str
    row: Datatype
    shape: tuple[int, ...]
    elements: int
    size: int
    data: Any
    region: MemoryRange | None = None


@dataclass(slots=True)
class Plan:
    """A request's JSON, checked. Shared between requests with equal JSON: never written to."""

    inputs: list[InputPlan]
    requested: tuple[str, ...] = ()
    binary: dict[str, bool] = field(default_factory=dict)  # requested output -> as binary data
    binary_default: bool = False
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    sequence: SequencePosition = NO_SEQUENCE
    rules: dict[str, OutputRule] = field(default_factory=dict)  # of outputs to classify or to put into shared memory


def decode(body: Chunk, binary: Chunk, model: str, version: str, memory: SharedMemory) -> tuple[InferenceRequest, Plan]:
    """INVALID_ARG for whatever the request has wrong in itself; the model's own checks are the server's."""
    plan, arrays = _read_plan(body, len(binary) > 0)
    return _request(plan, binary, model, version, memory, arrays), plan


def _read_plan(body: Chunk, has_binary: bool) -> tuple[Plan, Arrays]:
    if has_binary and len(body) <= _CACHED_PLAN_SIZE:
        return _cached_plan(bytes(body)), NO_ARRAYS
    if len(body) >= _OUTLINED_FROM:
        try:
            return _outlined_plan(body)
        except (NotFlatError, ServingError):
            pass  # to be parsed whole, which also says best what is wrong
    plan = make_plan(load_json(body))
    arrays = {spec.name: spec.data for spec in plan.inputs if spec.data is not None}
    plan.inputs = [spec._replace(data=None) for spec in plan.inputs]  # or the parsed JSON would stay until the answer
    return plan, arrays


def _outlined_plan(body: Chunk) -> tuple[Plan, Arrays]:
    outline, texts = split_body(body)
    plan = _cached_plan(outline) if len(outline) <= _CACHED_PLAN_SIZE else make_plan(load_json(outline))
    given = [spec for spec in plan.inputs if spec.data is not None]
    # An array that is no input's data would shift the others.
    marks = [spec.data if isinstance(spec.data, list) else list(spec.data) for spec in given if is_array(spec.data)]
    if marks != [[number] for number in range(len(texts))] or len(marks) != len(given):
        raise NotFlatError
    return plan, {spec.name: numbers(text, spec.row) for spec, text in zip(given, texts, strict=True)}


def decode_raw(config: ModelConfig, binary: Chunk, version: str) -> tuple[InferenceRequest, Plan]:
    """Triton's raw binary request: the body is the data of the model's only input, or its one BYTES element."""
    if len(config.input) == 1 and BY_CONFIG[config.input[0].data_type].name == "BYTES":
        binary = len(binary).to_bytes(4, "little") + bytes(binary)
    plan = _raw_plan(config, len(binary))
    return _request(plan, binary, config.name, version), plan


def _request(
    plan: Plan,
    binary: Chunk,
    model: str,
    version: str,
    memory: SharedMemory | None = None,
    arrays: Arrays = NO_ARRAYS,
) -> InferenceRequest:
    inputs: dict[str, NDArray[Any]] = {}
    offset = 0
    for spec in plan.inputs:
        if spec.region is not None:
            assert memory is not None
            inputs[spec.name] = read_input(memory, model, spec.name, spec.row, spec.shape, spec.region)
            continue
        if spec.size < 0:
            inputs[spec.name] = array_from_json(
                spec.name, spec.row, spec.shape, spec.elements, arrays.get(spec.name, spec.data)
            )
            continue
        end = offset + spec.size
        if end > len(binary):
            missing = end - len(binary)
            raise invalid(f"unexpected size for input '{spec.name}', expecting {missing} additional bytes")
        inputs[spec.name] = _tensor(spec, binary, offset)
        offset = end
    if offset != len(binary):
        raise invalid(f"unexpected additional input data: {len(binary) - offset} bytes after the last binary input")
    targets = NO_TARGETS
    if plan.rules and memory is not None:
        targets = find_targets(plan.rules, memory, [spec.region for spec in plan.inputs])
    return InferenceRequest(
        model,
        inputs,
        version,
        plan.id,
        plan.requested,
        plan.parameters,
        plan.priority,
        plan.timeout_us,
        plan.sequence,
        targets,
        all_on_device(targets, plan.requested) if targets else False,
    )


def _tensor(spec: InputPlan, binary: Chunk, offset: int) -> NDArray[Any]:
    row = spec.row
    if row.itemsize == 0:
        return deserialize_bytes(memoryview(binary)[offset : offset + spec.size], spec.elements).reshape(spec.shape)
    array: NDArray[Any] = np.ndarray(spec.shape, row.dtype, binary, offset)
    if row.dtype.kind == "b":
        return np.not_equal(array.view(np.uint8), 0)  # a byte other than 0 and 1 is no valid numpy boolean
    # Backends hand the pointer to native code, which may want it aligned.
    return array if array.flags.aligned else array.copy()


@functools.lru_cache(maxsize=256)
def _cached_plan(body: bytes) -> Plan:
    """Clients of binary data send the same JSON with each request."""
    return make_plan(load_json(body))


def make_plan(value: Any) -> Plan:
    """The checked form of a request's JSON."""
    if not isinstance(value, dict):
        raise invalid("expected the request to be a JSON object")
    inputs = value.get("inputs")
    if not isinstance(inputs, list):
        raise invalid("expected 'inputs' to be an array of objects")
    if len(inputs) > MAX_TENSORS:
        raise too_many("'inputs'", inputs, MAX_TENSORS)
    plan = Plan([_input_plan(item) for item in inputs])
    names = {spec.name for spec in plan.inputs}
    if len(names) != len(plan.inputs):
        raise invalid("an input is given more than once")
    plan.id = _typed(value, "id", str, "")
    _read_parameters(plan, _parameters(value))
    _read_outputs(plan, value.get("outputs", []))
    return plan


def _input_plan(item: Any) -> InputPlan:
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
        return InputPlan(name, row, shape, count, -1, None, region)
    if size is None:
        if "data" not in item:
            raise invalid(f"input '{name}': expected 'data', or 'binary_data_size' in its parameters")
        return InputPlan(name, row, shape, count, -1, item["data"])
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
    return InputPlan(name, row, shape, count, size, None)


def _shape(name: str, row: Datatype, value: Any) -> tuple[tuple[int, ...], int]:
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


def _read_parameters(plan: Plan, parameters: Mapping[str, Any]) -> None:
    for name, value in parameters.items():
        if name == "binary_data_output":
            plan.binary_default = _expect(name, value, bool)
        elif name == "sequence_start":
            plan.sequence = plan.sequence._replace(start=_expect(name, value, bool))
        elif name == "sequence_end":
            plan.sequence = plan.sequence._replace(end=_expect(name, value, bool))
        elif name == "sequence_id":
            plan.sequence = plan.sequence._replace(id=value if isinstance(value, str) else _whole(name, value))
        elif name == "priority":
            plan.priority = _whole(name, value)
        elif name == "timeout":
            plan.timeout_us = _whole(name, value)
        elif name.startswith("triton_"):
            raise invalid("parameters whose names start with 'triton_' are reserved")
        elif isinstance(value, _SCALARS):
            plan.parameters[name] = value
        else:
            raise invalid(f"expected parameter '{name}' to be a string, a number or a boolean")


def _read_outputs(plan: Plan, outputs: Any) -> None:
    if not isinstance(outputs, list):
        raise invalid("expected 'outputs' to be an array of objects")
    if len(outputs) > MAX_TENSORS:
        raise too_many("'outputs'", outputs, MAX_TENSORS)
    for item in outputs:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise invalid("expected each of 'outputs' to be an object with a 'name'")
        parameters = _parameters(item)
        rule = output_rule(name, parameters)
        if rule is not None and rule.memory is not None and parameters.get("binary_data"):
            raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'binary_data'")
        binary = _expect("binary_data", parameters.get("binary_data", plan.binary_default), bool)
        if name in plan.binary:
            continue  # named twice: the first mention counts, as in Triton
        plan.binary[name] = binary
        if rule is not None:
            plan.rules[name] = rule
    plan.requested = tuple(plan.binary)


_NONE: Mapping[str, Any] = {}


def _parameters(value: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = value.get("parameters", _NONE)
    if not isinstance(parameters, dict):
        raise _wrong_type("parameters", dict)
    if len(parameters) > MAX_PARAMETERS:
        raise too_many("'parameters'", parameters, MAX_PARAMETERS)
    return parameters


def _typed(value: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    found = value.get(name, default)
    if not isinstance(found, kind):
        raise _wrong_type(name, kind)
    return found


def _expect(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise _wrong_type(name, kind)
    return value


def _wrong_type(name: str, kind: type) -> ServingError:
    words = {str: "a string", bool: "a boolean", dict: "an object"}
    return invalid(f"expected '{name}' to be {words[kind]}")


def _whole(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise invalid(f"expected '{name}' to be a whole number of at least 0")
    return value


def _raw_plan(config: ModelConfig, size: int) -> Plan:
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
        return Plan([InputPlan(tensor.name, row, tuple(dims), 1, size, None)], binary_default=True)
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
    return Plan([InputPlan(tensor.name, row, tuple(dims), count, size, None)], binary_default=True)

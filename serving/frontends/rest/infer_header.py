"""Checks the JSON of a V2 inference request, without the elements of its tensors: Triton's inference header.

Most clients repeat a header with another `id` and other arrays under "data". So the id and the arrays are cut out, and the
rest, the outline, is parsed only once. A mark that no client can guess replaces each part that was cut out. Unless the parser
returns each mark as the id or as the data of an input, the complete body is parsed.

Source: KServe V2 REST, Inference; Triton docs/protocol/extension_{binary_data,parameters,schedule_policy,sequence}.md.
"""

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from serving.core.datatypes import Datatype, datatype
from serving.core.errors import ServingError, invalid
from serving.core.output_target import MemoryRange, OutputRule
from serving.core.request import NO_SEQUENCE, Parameters, SequencePosition
from serving.extensions.tensor_parameters import memory_range_of, output_rule
from serving.frontends.http1.message import Chunk
from serving.frontends.rest.json_input import (
    LARGE,
    MARK,
    MARK_TEXT,
    MAX_PARAMETERS,
    MAX_TENSORS,
    SMALL_TEXT,
    NotFlatError,
    check_count,
    cut_arrays,
    cut_large_arrays,
    load_json,
)
from serving.frontends.rest.response_outline import ResponseOutline
from serving.frontends.shared.bounded_cache import BoundedCache

MAX_DIMS = 32
CACHED_OUTLINES = 512
CACHED_SIZE = 4096  # longer outlines (in bytes) are not cached
_ID = re.compile(rb'"id": ?"([^"\\\x00-\x1f]*)"')  # the first id, if it has no escapes
_ID_MARK = b'"id":' + MARK_TEXT
# numpy's code of a dtype -> the code of `struct`, for datatypes that are numbers in JSON
_STRUCT_CODES = {
    "i1": "b",
    "i2": "h",
    "i4": "i",
    "i8": "q",
    "u1": "B",
    "u2": "H",
    "u4": "I",
    "u8": "Q",
    "f4": "f",
    "f8": "d",
}

T = TypeVar("T")
JsonMembers = Mapping[str, object]


class InputHeader:
    """The declaration of one input.

    binary_size: bytes of the input in the binary part; -1 if its data is in the JSON or in `region`. plain: whether numpy uses
    the same binary format. pack: encodes the elements, which are Python numbers, and raises if one has another type or is out
    of range, or is None if there are too many elements, or the datatype is not numbers in JSON.
    """

    __slots__ = ("binary_size", "dtype", "elements", "name", "pack", "plain", "region", "row", "shape")

    def __init__(
        self,
        name: str,
        row: Datatype,
        shape: tuple[int, ...],
        elements: int,
        binary_size: int = -1,
        region: MemoryRange | None = None,
    ) -> None:
        self.name = name
        self.row = row
        self.dtype = row.dtype
        self.shape = shape
        self.elements = elements
        self.binary_size = binary_size
        self.region = region
        self.plain = row.itemsize > 0 and row.name != "BOOL"
        code = _STRUCT_CODES.get(row.dtype.str[1:])
        self.pack: Callable[..., bytes] | None = None
        if code is not None and elements <= SMALL_TEXT:
            self.pack = struct.Struct(f"={elements}{code}").pack


@dataclass
class InferHeader:
    """The checked JSON of a request. Requests with equal outlines share it. Only `outlines` changes.

    given: the inputs whose data is in the JSON. binary_size: the size of the binary part, in bytes.
    outlines: model -> the outline of the model's last response to this header.
    """

    inputs: list[InputHeader]
    given: list[InputHeader] = field(default_factory=list)
    binary_size: int = 0
    requested: tuple[str, ...] = ()
    binary: dict[str, bool] = field(default_factory=dict)  # requested output -> whether it is sent as binary data
    binary_default: bool = False
    id: str = ""
    parameters: Parameters = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    sequence: SequencePosition = NO_SEQUENCE
    rules: dict[str, OutputRule] = field(default_factory=dict)  # of outputs to classify or write to shared memory
    all_binary: bool = False  # whether all outputs are sent as binary data
    outlines: BoundedCache[str, ResponseOutline] = field(default_factory=lambda: BoundedCache(8))

    def is_binary(self, output: str) -> bool:
        return self.binary.get(output, self.binary_default)


# -- outlines ----------------------------------------------------------------------------------------------------------
_known: BoundedCache[bytes, InferHeader] = BoundedCache(CACHED_OUTLINES)


def read_outline(body: Chunk) -> tuple[InferHeader, str, list[Chunk]]:
    """Return the header, the request's id, and the data of each input in `given`, as the unparsed text of a JSON array. Raises
    NotFlatError if the complete body must be parsed."""
    if len(body) >= LARGE:
        outline, texts = cut_large_arrays(body)
    else:
        outline = bytes(body)
        header = _known.get(outline)
        if header is not None:
            return header, header.id, []
        outline, texts = cut_arrays(outline)
    if not texts and len(outline) > CACHED_SIZE:
        raise NotFlatError  # most of the outline may be arrays that could not be cut out
    header = _known.get(outline) if texts else None
    if header is not None:
        return header, header.id, texts
    cut = _ID.split(outline, 1)
    if len(cut) == 3:
        marked = _ID_MARK.join((cut[0], cut[2]))
        header = _known.get(marked) or _learn(marked, len(texts))
        if header is not None and header.id == MARK:
            try:
                return header, cut[1].decode(), texts
            except UnicodeDecodeError:
                raise NotFlatError from None
    header = _learn(outline, len(texts))
    if header is None:
        raise NotFlatError
    return header, header.id, texts


def _learn(outline: bytes, arrays: int) -> InferHeader | None:
    """Return the header of an outline, or None if a mark is not in its place. An array or the id that was cut out is then the
    value of another field."""
    try:
        header, data = check_header(load_json(outline))
    except ServingError:
        return None
    wanted = arrays + (header.id == MARK)
    if data != [MARK] * arrays or outline.count(MARK_TEXT) != wanted:
        return None
    if len(outline) <= CACHED_SIZE:
        _known.remember(outline, header)
    return header


# -- checks ------------------------------------------------------------------------------------------------------------
def check_header(value: object) -> tuple[InferHeader, list[object]]:
    """Check the JSON of a request. Return its header, and the data of its `given` inputs, which is not checked."""
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
    header.given = [spec for spec in header.inputs if spec.binary_size < 0 and spec.region is None]
    header.binary_size = sum(spec.binary_size for spec in header.inputs if spec.binary_size > 0)
    header.id = _checked("id", value.get("id", ""), str)
    _read_parameters(header, _parameters(value))
    _read_outputs(header, value.get("outputs", []))
    return header, [item["data"] for item in inputs if "data" in item]


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
        return InputHeader(name, row, shape, count, -1, region)
    if size is None:
        if "data" not in item:
            raise invalid(f"input '{name}': expected 'data', or 'binary_data_size' in its parameters")
        return InputHeader(name, row, shape, count)
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
    return InputHeader(name, row, shape, count, size)


def _shape(name: str, row: Datatype, value: object) -> tuple[tuple[int, ...], int]:
    if not isinstance(value, list) or not all(type(dim) is int and dim >= 0 for dim in value):
        raise invalid(f"input '{name}': expected 'shape' to be an array of whole numbers, none of them negative")
    if len(value) > MAX_DIMS:
        raise invalid(f"input '{name}': expected at most {MAX_DIMS} dimensions, got {len(value)}")
    shape = tuple(value)
    count = math.prod(shape)
    # numpy limits the product of the other dims, even if one dim is 0
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
    header.all_binary = all(header.binary.values()) if header.binary else header.binary_default


_NONE: JsonMembers = {}


def _parameters(value: JsonMembers) -> JsonMembers:
    parameters = value.get("parameters", _NONE)
    if not isinstance(parameters, dict):
        raise _wrong_type("parameters", dict)
    check_count("'parameters'", parameters, MAX_PARAMETERS)
    return parameters


def _checked(name: str, value: object, kind: type[T]) -> T:
    """Return the value. Raises INVALID_ARG if it has another type."""
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

"""Tensors in the JSON of examples: V2's JSON, and base64 for values that JSON cannot carry.

    {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.5, "NaN"]}
    {"name": "png", "datatype": "BYTES", "shape": [1], "base64": "BAAAAIlQTkc="}

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity", as protobuf writes them, because databases refuse
the bare tokens. PostgreSQL also refuses the character NUL. `base64` contains the bytes of Triton's binary data extension, in
which each element of BYTES follows its length. Whole numbers that many readers of JSON would round are written in `base64`,
too. FP16 and BF16, which have no JSON form in V2, are numbers in this form.

Source: KServe V2 "Tensor Data Types"; Triton docs/protocol/extension_binary_data.md.
"""

import base64
import binascii
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from repository.core.errors import InvalidExample
from repository.core.json_types import Json, JsonObject

Element: TypeAlias = "bool | int | float | bytes"

# Datatype -> the code of `struct`. BF16 is the upper half of an FP32.
_CODES = {
    "BOOL": "?",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "FP16": "e",
    "BF16": "f",
    "FP32": "f",
    "FP64": "d",
}
DATATYPES = (*_CODES, "BYTES")
FLOATS = frozenset({"FP16", "BF16", "FP32", "FP64"})
# How many decimal digits to try. With the last count, different numbers always have different digits.
_DIGITS = {"FP16": (3, 4, 5), "BF16": (4,), "FP32": (6, 7, 8, 9)}
_NO_JSON = frozenset({"FP16", "BF16"})
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAX_DIMS = 32
_SAFE_INTEGER = 2**53 - 1  # the largest integer that JavaScript, whose numbers are all doubles, holds exactly


@dataclass(frozen=True, slots=True)
class Tensor:
    """elements: row by row, as numbers that the datatype can hold exactly; elements of BYTES are `bytes`."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    elements: Sequence[Element]


def read_tensor(row: object) -> Tensor:
    """Read the JSON of a tensor. Raises InvalidExample, with its name, if the JSON or an element does not fit."""
    if not isinstance(row, dict) or not is_tensor_name(row.get("name")):
        raise InvalidExample("expected every tensor as an object with a name, a datatype, a shape and its data")
    name = row["name"]
    datatype = row.get("datatype")
    if datatype not in DATATYPES:
        raise InvalidExample(f"tensor '{name}': expected a datatype of {', '.join(DATATYPES)}, got '{datatype}'")
    shape = _shape(name, row.get("shape"))
    given = [key for key in ("data", "base64") if key in row]
    if len(given) != 1:
        raise InvalidExample(f"tensor '{name}': expected its elements as 'data' or as 'base64'")
    elements = _from_base64(name, datatype, row["base64"]) if given == ["base64"] else _from_data(name, datatype, row)
    count = math.prod(shape)
    if len(elements) != count:
        raise InvalidExample(
            f"tensor '{name}': shape {list(shape)} has {count} elements, but {len(elements)} are given"
        )
    return Tensor(name, datatype, shape, elements)


def is_tensor_name(value: object) -> bool:
    """Return whether a value can name a tensor. The character NUL is not allowed, because databases refuse it."""
    return isinstance(value, str) and value != "" and "\0" not in value


def tensor_json(tensor: Tensor) -> JsonObject:
    """Return a tensor as JSON, from which `read_tensor` reads an equal tensor."""
    head: JsonObject = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if tensor.datatype == "BYTES":
        texts = _texts(tensor)
        return (
            {**head, "base64": base64.b64encode(to_binary(tensor)).decode()}
            if texts is None
            else {**head, "data": texts}
        )
    if tensor.datatype in FLOATS:
        return {**head, "data": [_number_json(element, tensor.datatype) for element in _numbers(tensor)]}
    if tensor.datatype == "BOOL":
        return {**head, "data": [bool(element) for element in tensor.elements]}
    if any(abs(element) > _SAFE_INTEGER for element in _integers(tensor)):
        return {**head, "base64": base64.b64encode(to_binary(tensor)).decode()}
    return {**head, "data": [*_integers(tensor)]}


def to_binary(tensor: Tensor) -> bytes:
    """Return the elements in the form of the binary data extension."""
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(_bytes(element))) + _bytes(element) for element in tensor.elements)
    content = struct.pack(f"<{len(tensor.elements)}{_CODES[tensor.datatype]}", *tensor.elements)
    return content if tensor.datatype != "BF16" else _upper_halves(content)


def from_binary(name: str, datatype: str, content: bytes) -> list[Element]:
    """Return the elements in the binary data of a tensor. Raises InvalidExample if the bytes are not whole elements."""
    if datatype == "BYTES":
        return list(_byte_elements(name, content))
    if datatype == "BF16":
        content = b"".join(b"\0\0" + content[at : at + 2] for at in range(0, len(content), 2))
    width = struct.calcsize(f"<{_CODES[datatype]}")
    if len(content) % width:
        raise InvalidExample(f"tensor '{name}': its binary data does not end with an element of {datatype}")
    return list(struct.unpack(f"<{len(content) // width}{_CODES[datatype]}", content))


def in_json(tensor: Tensor) -> bool:
    """Return whether V2's JSON can carry the tensor; otherwise it is sent as binary data."""
    if tensor.datatype == "BYTES":
        return _texts(tensor) is not None
    if tensor.datatype in FLOATS:
        return tensor.datatype not in _NO_JSON and all(math.isfinite(element) for element in _numbers(tensor))
    return "base64" not in tensor_json(tensor)


def _texts(tensor: Tensor) -> list[Json] | None:
    try:
        texts = [_bytes(element).decode() for element in tensor.elements]
    except UnicodeDecodeError:
        return None
    return None if any("\0" in text for text in texts) else [*texts]


def _integers(tensor: Tensor) -> Iterator[int]:
    return (int(element) for element in tensor.elements)


def _numbers(tensor: Tensor) -> Iterator[float]:
    return (float(element) for element in tensor.elements)


def _shape(name: str, given: object) -> tuple[int, ...]:
    dims = given if isinstance(given, list) else [-1]
    if len(dims) > _MAX_DIMS or not all(type(dim) is int and dim >= 0 for dim in dims):
        raise InvalidExample(
            f"tensor '{name}': expected its shape as a list of whole numbers from 0, got {given}"[:300]
        )
    return tuple(dims)


def _from_base64(name: str, datatype: str, given: object) -> list[Element]:
    try:
        content = base64.b64decode(given if isinstance(given, str) else "*", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidExample(f"tensor '{name}': expected base64 in 'base64'") from None
    return from_binary(name, datatype, content)


def _from_data(name: str, datatype: str, row: Mapping[str, object]) -> list[Element]:
    if not isinstance(row["data"], list):
        raise InvalidExample(f"tensor '{name}': expected its data as a list")
    given = list(_flat(name, row["data"]))
    if datatype == "BYTES":
        if not all(isinstance(element, str) for element in given):
            raise InvalidExample(f"tensor '{name}': expected texts, as BYTES needs")
        return [str(element).encode("utf-8", "surrogatepass") for element in given]
    if datatype == "BOOL":
        if not all(element in (0, 1) for element in given):
            raise InvalidExample(f"tensor '{name}': expected true and false, as BOOL needs")
        return [bool(element) for element in given]
    return _exact(name, datatype, [_number(name, datatype, element) for element in given])


def _flat(name: str, given: list[object], depth: int = 0) -> Iterator[object]:
    if depth > _MAX_DIMS:
        raise InvalidExample(f"tensor '{name}': its data is nested too deeply")
    for element in given:
        if isinstance(element, list):
            yield from _flat(name, element, depth + 1)
        else:
            yield element


def _number(name: str, datatype: str, given: object) -> int | float:
    if datatype in FLOATS and isinstance(given, str) and given in _WORDS:
        return _WORDS[given]
    if type(given) is int or (type(given) is float and datatype in FLOATS):
        return given
    raise InvalidExample(f"tensor '{name}': {given!r} is no number of {datatype}"[:300])


def _exact(name: str, datatype: str, given: list[int | float]) -> list[Element]:
    """Return the numbers rounded to the datatype. Raises InvalidExample if a number is outside its range."""
    try:
        binary = to_binary(Tensor(name, datatype, (len(given),), given))
    except (struct.error, OverflowError):
        raise InvalidExample(f"tensor '{name}': a number does not fit into {datatype}") from None
    return from_binary(name, datatype, binary)


def _upper_halves(content: bytes) -> bytes:
    """Return FP32 numbers as BF16, rounded to the nearest, ties to even."""
    bits = struct.unpack(f"<{len(content) // 4}I", content)
    rounded = (
        one >> 16 | 0x40 if one << 1 & 0xFFFFFFFF > 0xFF000000 else one + 0x7FFF + (one >> 16 & 1) >> 16 for one in bits
    )
    return struct.pack(f"<{len(bits)}H", *rounded)


def _byte_elements(name: str, content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 4], "little")
        element = content[at + 4 : at + 4 + length]
        if at + 4 > len(content) or len(element) != length:
            raise InvalidExample(f"tensor '{name}': its binary data ends in the middle of an element")
        yield element
        at += 4 + length


def _bytes(element: Element) -> bytes:
    assert isinstance(element, bytes)  # an element of BYTES
    return element


def _number_json(value: float, datatype: str) -> Json:
    """Return a number for JSON, with the fewest digits from which the same number is read."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if datatype == "FP64":
        return value
    code = f"<{_CODES[datatype]}"
    for digits in _DIGITS[datatype][:-1]:
        short = float(f"{value:.{digits}g}")
        try:
            if struct.unpack(code, struct.pack(code, short))[0] == value:
                return short
        except OverflowError:  # the rounded number is larger than the largest number of the datatype
            continue
    return float(f"{value:.{_DIGITS[datatype][-1]}g}")

"""Rows as infer requests of V2 with binary data, and the answers to them.

Source: KServe V2; Triton docs/protocol/extension_binary_data.md.
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import orjson

from dashboard.batches.formats.table import Answer, Column, Row, Value
from dashboard.models.batch import BatchInput
from dashboard.servers.client import Refused
from repository.core.errors import InvalidExample
from repository.core.json_types import Json, JsonObject
from repository.core.tensors import FLOATS, Element, Tensor, tensor_json, to_binary

_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no")


class Fault(Exception):
    """A row cannot be sent; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A row in binary form. number: its place among the rows of its part. shapes, contents: of each input."""

    number: int
    shapes: tuple[tuple[int, ...], ...]
    contents: tuple[bytes, ...]

    @property
    def size(self) -> int:
        return sum(map(len, self.contents))


def ready(number: int, row: Row, inputs: Sequence[BatchInput]) -> Ready:
    """Return a row in binary form. Raises Fault if a value does not fit its input."""
    if row.fault:
        raise Fault(row.fault)
    shapes, contents = [], []
    for given in inputs:
        shape, content = _input(row, given)
        shapes.append(shape)
        contents.append(content)
    return Ready(number, tuple(shapes), tuple(contents))


def request_of(
    rows: Sequence[Ready], inputs: Sequence[BatchInput], *, batched: bool, priority: int
) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request for rows of the same shapes.

    batched: whether the first dimension is that of the batch; otherwise there is one row. priority: 0 for the default.
    """
    joined = [b"".join(row.contents[at] for row in rows) for at in range(len(inputs))]
    tensors = [
        {
            "name": given["name"],
            "datatype": given["datatype"],
            "shape": [len(rows), *rows[0].shapes[at]] if batched else list(rows[0].shapes[at]),
            "parameters": {"binary_data_size": len(joined[at])},
        }
        for at, given in enumerate(inputs)
    ]
    parameters: JsonObject = {"binary_data_output": True, **({"priority": priority} if priority else {})}
    head = orjson.dumps({"inputs": tensors, "parameters": parameters})
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return b"".join([head, *joined]), headers


def answers_of(
    outputs: Sequence[Tensor], columns: Sequence[tuple[str, Column]], rows: int, *, batched: bool
) -> list[Answer]:
    """Return the answer to each row. columns: the name of an output, and its column.

    Raises Refused if an output is missing, or has not one entry for each row.
    """
    found = {output.name: output for output in outputs}
    values: list[list[Json]] = []
    for name, column in columns:
        output = found.get(name)
        if output is None:
            raise Refused(f"the model did not answer with its output '{name}'")
        shape = output.shape[1:] if batched else output.shape
        if (batched and output.shape[:1] != (rows,)) or (not column.is_list and math.prod(shape) != 1):
            raise Refused(f"the model's output '{name}' has the shape {list(output.shape)} for {rows} rows")
        elements = _elements(output)
        count = math.prod(shape)
        pieces = [elements[at * count : (at + 1) * count] for at in range(rows)]
        values.append([_nested(piece, shape) for piece in pieces] if column.is_list else [one[0] for one in pieces])
    return [Answer(list(row)) for row in zip(*values, strict=True)] if values else [Answer() for _ in range(rows)]


def _elements(output: Tensor) -> list[Json]:
    """Return the elements as JSON: numbers with the fewest digits, words for those that are not finite."""
    row = tensor_json(output)
    if "data" in row:
        return cast("list[Json]", row["data"])
    return [_text_or_base64(one) if isinstance(one, bytes) else one for one in output.elements]


def _text_or_base64(content: bytes) -> Json:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(content).decode()}


def _nested(elements: list[Json], shape: Sequence[int]) -> Json:
    if len(shape) < 2:
        return elements
    width = math.prod(shape[1:])
    return [_nested(elements[at * width : (at + 1) * width], shape[1:]) for at in range(shape[0])]


# -- one input of one row ----------------------------------------------------------------------------------------------
def _input(row: Row, given: BatchInput) -> tuple[tuple[int, ...], bytes]:
    values = [_value(row, column) for column in given["columns"]]
    value: Value = values[0] if len(values) == 1 else cast("list[Json]", values)
    name, datatype = given["name"], given["datatype"]
    if isinstance(value, str) and given["shape"] not in ([], [1]) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise Fault(f"'{name}': expected a list as JSON") from None
    dims: list[int] = []
    elements = [_element(one, name, datatype) for one in _flat(value, dims, name)]
    shape = _shape(given, dims, len(elements))
    try:
        return shape, to_binary(Tensor(name, datatype, shape, elements))
    except (struct.error, OverflowError):
        raise Fault(f"'{name}': a number does not fit into {datatype}") from None


def _value(row: Row, column: str) -> Value:
    value = row.values.get(column)
    if value is None:
        raise Fault(f"the row has no '{column}'")
    return value


def _flat(value: Value, dims: list[int], name: str, depth: int = 0) -> list[Value]:
    """Return the elements of nested lists, and append their dimensions to `dims`."""
    if not isinstance(value, list):
        if depth < len(dims):
            raise Fault(f"'{name}': the lists in it are not equally deep")
        return [value]
    if depth == len(dims):
        dims.append(len(value))
    elif dims[depth] != len(value):
        raise Fault(f"'{name}': the lists in it are not equally long")
    return [one for inner in value for one in _flat(inner, dims, name, depth + 1)]


def _shape(given: BatchInput, dims: list[int], count: int) -> tuple[int, ...]:
    """Return the shape of a row: the input's own, whose dimensions that vary follow from the value."""
    wanted = given["shape"]
    known = math.prod(dim for dim in wanted if dim >= 0)
    free = [at for at, dim in enumerate(wanted) if dim < 0]
    if not free and known == count:
        return tuple(wanted)
    if len(free) == 1 and known and count % known == 0:
        return tuple(count // known if dim < 0 else dim for dim in wanted)
    if len(dims) == len(wanted) and all(dim in (-1, own) for dim, own in zip(wanted, dims, strict=True)):
        return tuple(dims)
    raise Fault(f"'{given['name']}': expected {wanted}, but the row has {dims or count}")


def _element(value: Value, name: str, datatype: str) -> Element:
    try:
        if datatype == "BYTES":
            return _bytes(value)
        if datatype == "BOOL":
            return _bool(value)
        if isinstance(value, str) and not value.strip():
            raise Fault(f"'{name}' is empty")
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        return float(value) if datatype in FLOATS else _int(value)
    except (ValueError, OverflowError, InvalidExample, binascii.Error):
        raise Fault(f"'{name}': expected {datatype}") from None


def _bytes(value: Value) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict):
        content = value.get("b64")
        if len(value) != 1 or not isinstance(content, str):
            raise ValueError
        return base64.b64decode(content, validate=True)
    return json.dumps(value).encode() if isinstance(value, bool | int | float) else str(value).encode()


def _bool(value: Value) -> bool:
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise ValueError
    return text in _TRUE


def _int(value: int | float | str) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)
    if isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)

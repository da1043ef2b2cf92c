"""Tensors inside JSON: lists of numbers, booleans or strings, flat or nested in row-major order, to arrays and back.

Large bodies are parsed by simdjson, whose arrays give their numbers as one buffer without a Python object for each.
JSON has no NaN or infinity; like Triton this writes and reads the tokens NaN, Infinity and -Infinity.
"""

import json
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.datatypes import Datatype
from serving.errors import ServingError, invalid
from serving.frontends.http_message import Chunk
from serving.frontends.json_pieces import exact_json, from_buffer

SIMDJSON_FROM = 2048  # bytes; below, orjson is faster


def load_json(body: Chunk) -> Any:
    """The parsed body. In a large one each "data" of `inputs` is a simdjson array."""
    try:
        if len(body) >= SIMDJSON_FROM:
            try:
                return _load_large(body)
            except KeyError:  # simdjson does not find every key that it lists: one with a NUL in it, say
                pass
        return orjson.loads(body)
    except (ValueError, TypeError, RuntimeError) as error:  # RecursionError too
        return _load_leniently(body, error)


def _load_large(body: Chunk) -> Any:
    # A parser refuses to be reused while a value of it lives; making one costs little beside a large body.
    document = simdjson.Parser().parse(bytes(body) if isinstance(body, memoryview) else body)
    if not isinstance(document, simdjson.Object):
        return document
    # `items()` would make Python objects of everything
    result = {key: _plain(document[key]) for key in document.keys() if key != "inputs"}  # noqa: SIM118
    if "inputs" in document:
        inputs = document["inputs"]
        result["inputs"] = [_input(item) for item in inputs] if isinstance(inputs, simdjson.Array) else _plain(inputs)
    return result


def _input(item: Any) -> Any:
    if not isinstance(item, simdjson.Object):
        return _plain(item)
    return {key: item[key] if key == "data" else _plain(item[key]) for key in item.keys()}  # noqa: SIM118


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _load_leniently(body: Chunk, error: Exception) -> Any:
    """Only for bodies with NaN or Infinity, which the fast parsers refuse."""
    content = bytes(body)
    if b"NaN" in content or b"Infinity" in content:
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            pass
    raise invalid(f"failed to parse the request JSON: {error}") from None


def array_from_json(name: str, row: Datatype, shape: tuple[int, ...], count: int, data: Any) -> NDArray[Any]:
    """The tensor of an input's `data`; INVALID_ARG for what does not fit its datatype or shape."""
    if row.name in ("FP16", "BF16"):
        raise invalid(f"input '{name}': {row.name} has no JSON form, send it as binary data")
    flat: NDArray[Any] | None
    if isinstance(data, np.ndarray):
        flat = data
    elif isinstance(data, simdjson.Array):
        flat = from_buffer(row, data)
        if flat is None:
            data = data.as_list()
    else:
        flat = None
    if flat is None:
        if not isinstance(data, list):
            raise invalid(f"input '{name}': expected 'data' to be an array")
        flat = _strings(name, data) if row.name == "BYTES" else _from_list(name, row, data)
    if flat.size != count:
        raise invalid(f"input '{name}': shape {list(shape)} has {count} elements, but 'data' has {flat.size}")
    return _cast(name, row, flat).reshape(shape)


def _from_list(name: str, row: Datatype, data: list[Any]) -> NDArray[Any]:
    try:
        flat = np.array(data).reshape(-1)
    except (ValueError, OverflowError):
        raise invalid(f"input '{name}': 'data' is neither flat nor nested evenly") from None
    if row.name == "UINT64" and flat.dtype.kind == "f":
        flat = _wide_integers(flat, data)  # numpy makes a float of small and huge integers together
    allowed = {"b": "b", "f": "fiu"}.get(row.dtype.kind, "iu")
    if flat.size and flat.dtype.kind not in allowed:
        raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
    return flat


def _wide_integers(flat: NDArray[Any], data: list[Any]) -> NDArray[Any]:
    exact = np.array(data, dtype=np.object_).reshape(-1)
    try:
        return exact.astype(np.uint64) if all(type(element) is int for element in exact) else flat
    except OverflowError:
        return flat


def _cast(name: str, row: Datatype, flat: NDArray[Any]) -> NDArray[Any]:
    if flat.dtype == row.dtype:
        return flat
    if row.dtype.kind in "iu" and flat.size:
        limits = np.iinfo(row.dtype)
        if int(flat.min()) < limits.min or int(flat.max()) > limits.max:
            raise invalid(f"input '{name}': an element of 'data' is outside the range of {row.name}")
    with np.errstate(over="ignore"):
        return flat.astype(row.dtype)


def _strings(name: str, data: list[Any]) -> NDArray[Any]:
    flat: list[bytes] = []
    pending = [iter(data)]
    while pending:
        for element in pending[-1]:
            if isinstance(element, str):
                flat.append(element.encode("utf-8", "surrogatepass"))
            elif isinstance(element, list):
                pending.append(iter(element))
                break
            else:
                raise invalid(f"input '{name}': expected strings in 'data', got something else")
        else:
            pending.pop()
    result = np.empty(len(flat), dtype=np.object_)
    result[:] = flat
    return result


def array_to_json(name: str, row: Datatype, array: NDArray[Any]) -> "NDArray[Any] | list[str]":
    """What orjson writes as the flat `data` of an output."""
    if row.name in ("FP16", "BF16"):
        raise invalid(f"output '{name}': {row.name} has no JSON form, request it as binary data")
    if row.name != "BYTES":
        return np.ascontiguousarray(array).reshape(-1)
    try:
        return [element if isinstance(element, str) else bytes(element).decode() for element in array.reshape(-1)]
    except UnicodeDecodeError:
        raise invalid(f"output '{name}' has bytes that are not UTF-8, request it as binary data") from None


def dump_json(value: dict[str, Any]) -> bytes:
    """As JSON; numbers that are not finite become the tokens NaN, Infinity and -Infinity."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" in text:
            text = orjson.dumps(value, default=lambda array: orjson.Fragment(exact_json(array)))
    except (orjson.JSONEncodeError, ServingError):
        raise invalid("the answer cannot be written as JSON, request its outputs as binary data") from None
    return text

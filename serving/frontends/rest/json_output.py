"""Writes answers as JSON. Tensors become flat lists in row-major order, and large tensors are written in pieces.

A writer in C holds the interpreter's lock until it has finished. If it runs on a worker thread, the event loop can run between
two pieces.
JSON has no NaN or infinity. Like Triton, this module writes the tokens NaN, Infinity and -Infinity.
"""

import json
from collections.abc import Callable
from typing import Any

import orjson
from numpy.typing import NDArray

from serving.core.datatypes import Datatype
from serving.core.errors import ServingError, invalid
from serving.frontends.shared.worker_threads import checkpoint

LARGE_ARRAY = 32 << 10  # elements from which a tensor is written in pieces
_ELEMENTS = 8 << 10  # elements of a piece


def json_writer(name: str, row: Datatype, size: int) -> Callable[[NDArray[Any]], bytes]:
    """Return a function that writes the flat `data` of an output with `size` elements, or raises INVALID_ARG."""
    if row.name in ("BYTES", "FP16", "BF16"):
        return lambda array: orjson.dumps(flat_values(name, row, array))
    return _numbers if size < LARGE_ARRAY else _many_numbers


def flat_values(name: str, row: Datatype, array: NDArray[Any]) -> NDArray[Any] | list[str]:
    """Return the elements in row-major order: numbers and booleans as an array, BYTES as texts. Raises INVALID_ARG for FP16,
    BF16, and bytes that are not UTF-8."""
    if row.name in ("FP16", "BF16"):
        raise invalid(f"output '{name}': {row.name} has no JSON form, request it as binary data")
    if row.name != "BYTES":
        return array.ravel()
    try:
        return [element if isinstance(element, str) else bytes(element).decode() for element in array.reshape(-1)]
    except UnicodeDecodeError:
        raise invalid(f"output '{name}' has bytes that are not UTF-8, request it as binary data") from None


def dump_json(value: dict[str, object]) -> bytes:
    """Return a value as JSON. Numbers in arrays that are not finite become the tokens NaN, Infinity and -Infinity."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" in text:
            text = orjson.dumps(value, default=lambda array: orjson.Fragment(exact_json(array)))
    except (orjson.JSONEncodeError, ServingError):
        raise not_json() from None
    return text


def not_json() -> ServingError:
    return invalid("the answer cannot be written as JSON, request its outputs as binary data")


def _numbers(array: NDArray[Any]) -> bytes:
    """Return the elements as a JSON list. Numbers that are not finite become the tokens NaN, Infinity and -Infinity."""
    flat = array.ravel()
    text = orjson.dumps(flat, None, orjson.OPT_SERIALIZE_NUMPY)
    return exact_json(flat) if flat.dtype.kind == "f" and text.find(b"null") >= 0 else text


def _many_numbers(array: NDArray[Any]) -> bytes:
    """Do the same as `_numbers`, in pieces."""
    flat = array.ravel()
    pieces = []
    for start in range(0, len(flat), _ELEMENTS):
        checkpoint()
        pieces.append(_numbers(flat[start : start + _ELEMENTS])[1:-1])
    return b"[" + b",".join(pieces) + b"]"


def exact_json(array: NDArray[Any]) -> bytes:
    """Return an array as JSON, with the tokens NaN, Infinity and -Infinity. This is slow."""
    return json.dumps(array.tolist(), separators=(",", ":")).encode()

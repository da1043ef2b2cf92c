"""Answers as JSON: tensors as flat lists in row-major order, large ones written in pieces.

A writer in C holds the interpreter's lock until it is done; between two pieces the event loop gets its turn, where the work
runs on another thread. JSON has no NaN or infinity; like Triton this writes the tokens NaN, Infinity and -Infinity.
"""

import json
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.core.datatypes import Datatype
from serving.core.errors import ServingError, invalid
from serving.frontends.shared.worker_threads import checkpoint

LARGE_ARRAY = 32 << 10  # elements of an answer
_ELEMENTS = 8 << 10  # written at a time


def array_to_json(name: str, row: Datatype, array: NDArray[Any]) -> NDArray[Any] | list[str] | orjson.Fragment:
    """Return what orjson writes as the flat `data` of an output. INVALID_ARG for what JSON cannot hold."""
    values = flat_values(name, row, array)
    return numbers_as_json(values) if isinstance(values, np.ndarray) and len(values) >= LARGE_ARRAY else values


def flat_values(name: str, row: Datatype, array: NDArray[Any]) -> NDArray[Any] | list[str]:
    """Return the elements in row-major order: numbers and booleans as an array, BYTES as texts. INVALID_ARG for FP16, BF16
    and for bytes that are not UTF-8."""
    if row.name in ("FP16", "BF16"):
        raise invalid(f"output '{name}': {row.name} has no JSON form, request it as binary data")
    if row.name != "BYTES":
        return np.ascontiguousarray(array).reshape(-1)
    try:
        return [element if isinstance(element, str) else bytes(element).decode() for element in array.reshape(-1)]
    except UnicodeDecodeError:
        raise invalid(f"output '{name}' has bytes that are not UTF-8, request it as binary data") from None


def dump_json(value: dict[str, object]) -> bytes:
    """Return a value as JSON; numbers that are not finite become the tokens NaN, Infinity and -Infinity."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" in text:
            text = orjson.dumps(value, default=lambda array: orjson.Fragment(exact_json(array)))
    except (orjson.JSONEncodeError, ServingError):
        raise invalid("the answer cannot be written as JSON, request its outputs as binary data") from None
    return text


def numbers_as_json(array: NDArray[Any]) -> orjson.Fragment:
    """Return a flat array for orjson, written in pieces; what is not finite are the tokens NaN, Infinity and -Infinity."""
    pieces = []
    for start in range(0, len(array), _ELEMENTS):
        checkpoint()
        part = array[start : start + _ELEMENTS]
        text = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)
        pieces.append(exact_json(part)[1:-1] if b"null" in text else text[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


def exact_json(array: NDArray[Any]) -> bytes:
    """The slow way, which knows NaN and infinity."""
    return json.dumps(array.tolist(), separators=(",", ":")).encode()

"""Large arrays of numbers in JSON, read and written in pieces.

A parser or writer in C holds the interpreter's lock until it is done: 6 ms for each megabyte, for which the event loop stands
still, on whichever thread the parser runs. Between two pieces the loop gets its turn, where the work runs on another thread.
Only flat arrays of numbers are read so; nested ones, strings and booleans are parsed whole.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.datatypes import DATATYPES, Datatype
from serving.frontends.http_message import Chunk

LARGE = 256 << 10  # bytes of a request; below, a parser takes less than 2 ms
LARGE_ARRAY = 32 << 10  # elements of an answer
_WINDOW = 128 << 10  # bytes looked at or parsed at a time
_ELEMENTS = 8 << 10  # written at a time
_KEY = b'"data"'
_BUFFER_KINDS = {"f": ("d", np.dtype(np.float64)), "i": ("i", np.dtype(np.int64)), "u": ("u", np.dtype(np.uint64))}


class _NotFlatError(Exception):
    """The body is to be parsed whole: it may be wrong, or just not made of flat arrays of numbers."""


# -- reading -----------------------------------------------------------------------------------------------------------
def load_in_pieces(body: Chunk) -> dict[str, Any] | None:
    """The parsed request, where the "data" of each input is an array; None for a body that must be parsed whole."""
    view = memoryview(body)
    try:
        spans = list(_arrays(view))
        outline = orjson.loads(b"".join(_outline(view, spans)))
        inputs = [item for item in outline["inputs"] if "data" in item]
        # An array that is no input's data would shift the numbers.
        if [item["data"] for item in inputs] != [[number] for number in range(len(spans))]:
            return None
        for item, (start, stop) in zip(inputs, spans, strict=True):
            item["data"] = _numbers(view[start:stop], DATATYPES[item["datatype"]])
    except (_NotFlatError, ValueError, TypeError, KeyError):
        return None
    return outline if isinstance(outline, dict) else None


def _arrays(view: memoryview) -> Iterator[tuple[int, int]]:
    """Where the contents of each flat array under a key "data" begin and end. Inside a string the key's quotes would be
    escaped."""
    position = 0
    while (found := _find(view, _KEY, position)) >= 0:
        start = _behind(view, _behind(view, found + len(_KEY), b":"), b"[")
        stop = _find(view, b"]", start)
        if stop < 0 or view[found - 1] == ord("\\"):
            raise _NotFlatError
        yield start, stop
        position = stop


def _find(view: memoryview, token: bytes, position: int) -> int:
    while position < len(view):
        found = bytes(view[position : position + _WINDOW + len(token) - 1]).find(token)
        if found >= 0:
            return position + found
        position += _WINDOW
    return -1


def _behind(view: memoryview, position: int, token: bytes) -> int:
    """The position behind white space and this token."""
    near = bytes(view[position : position + 64])
    rest = near.lstrip(b" \t\r\n")
    if not rest.startswith(token):
        raise _NotFlatError
    return position + len(near) - len(rest) + len(token)


def _outline(view: memoryview, spans: list[tuple[int, int]]) -> Iterator[Chunk]:
    """The body with each array's number in place of its contents."""
    position = 0
    for number, (start, stop) in enumerate(spans):
        yield view[position:start]
        yield b"%d" % number
        position = stop
    yield view[position:]


def from_buffer(row: Datatype, data: Any) -> NDArray[Any] | None:
    """Numbers of a simdjson array, flattened; None where they are not all of the kind that the datatype needs."""
    kind = _BUFFER_KINDS.get(row.dtype.kind)
    if kind is None:
        return None
    try:
        return np.frombuffer(data.as_buffer(of_type=kind[0]), kind[1])
    except (TypeError, ValueError):
        return None


def _numbers(text: memoryview, row: Datatype) -> NDArray[Any]:
    """Floats in the datatype asked for; integers wide, so that their range can be checked."""
    parts = []
    for piece in _pieces(text):
        numbers = from_buffer(row, simdjson.Parser().parse(b"[" + piece + b"]"))
        if numbers is None or not numbers.size:
            raise _NotFlatError  # other elements, a comma too many, or an empty array
        with np.errstate(over="ignore"):
            parts.append(numbers.astype(row.dtype) if row.dtype.kind == "f" else numbers)
    return np.concatenate(parts)


def _pieces(text: memoryview) -> Iterator[bytes]:
    """Cut at commas."""
    position = 0
    while True:
        piece = bytes(text[position : position + _WINDOW])
        if position + len(piece) == len(text):
            yield piece
            return
        cut = piece.rfind(b",")
        if cut < 0:
            raise _NotFlatError
        yield piece[:cut]
        position += cut + 1


# -- writing -----------------------------------------------------------------------------------------------------------
def numbers_as_json(array: NDArray[Any]) -> orjson.Fragment:
    """A flat array for orjson; numbers that are not finite are the tokens NaN, Infinity and -Infinity."""
    pieces = []
    for start in range(0, len(array), _ELEMENTS):
        part = array[start : start + _ELEMENTS]
        text = orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)
        pieces.append(exact_json(part)[1:-1] if b"null" in text else text[1:-1])
    return orjson.Fragment(b"[" + b",".join(pieces) + b"]")


def exact_json(array: NDArray[Any]) -> bytes:
    """The slow way, which knows NaN and infinity."""
    return json.dumps(array.tolist(), separators=(",", ":")).encode()

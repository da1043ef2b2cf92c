"""Flat arrays of numbers in JSON, read apart from the rest of a request, and large ones read and written in pieces.

The rest, the outline, is the same for each request of most clients, and need not be parsed again. And a parser or writer in C
holds the interpreter's lock until it is done: 6 ms for each megabyte, for which the event loop stands still, on whichever
thread the parser runs. Between two pieces the loop gets its turn, where the work runs on another thread.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.core.datatypes import Datatype
from serving.frontends.http1.message import Chunk
from serving.frontends.shared.worker_threads import checkpoint

LARGE = 256 << 10  # bytes of a request; below, a parser takes less than 2 ms
LARGE_ARRAY = 32 << 10  # elements of an answer
_WINDOW = 128 << 10  # bytes looked at or parsed at a time
_ELEMENTS = 8 << 10  # written at a time
_KEY = re.compile(b'"data"')
_END = re.compile(b"]")
_KEY_SIZE = 6
MAX_ARRAYS = 4096  # of one request
_BUFFER_KINDS = {"f": ("d", np.dtype(np.float64)), "i": ("i", np.dtype(np.int64)), "u": ("u", np.dtype(np.uint64))}


class NotFlatError(Exception):
    """The body is to be parsed whole: it may be wrong, or just not made of flat arrays of numbers."""


# -- reading -----------------------------------------------------------------------------------------------------------
def split_body(body: Chunk) -> tuple[bytes, list[Chunk]]:
    """The outline, with [0], [1], ... in place of each flat array under a key "data", and what the arrays hold. Both are still
    to be parsed, and the outline must turn out to have each array as the data of an input. NotFlatError, or (outline, arrays).

    Inside a string the key's quotes would be escaped, so that what is found is a key, if the body is JSON at all.
    """
    pieces: list[Chunk] = []
    arrays: list[Chunk] = []
    position = 0
    while (found := _find(body, _KEY, position)) >= 0:
        start = _behind(body, _behind(body, found + _KEY_SIZE, b":"), b"[")
        stop = _find(body, _END, start)
        if stop < 0 or body[found - 1] == ord("\\") or len(arrays) == MAX_ARRAYS:
            raise NotFlatError
        pieces += (body[position:start], b"%d" % len(arrays))
        arrays.append(body[start:stop])
        position = stop
    return b"".join((*pieces, body[position:])), arrays


def _find(body: Chunk, token: re.Pattern[bytes], position: int) -> int:
    """Where the token is next, or -1. Looks at what lies before it and no more, and copies nothing."""
    while position < len(body):
        checkpoint()
        found = token.search(body, position, position + _WINDOW)
        if found:
            return found.start()
        position += _WINDOW - (_KEY_SIZE - 1)
    return -1


def _behind(body: Chunk, position: int, token: bytes) -> int:
    """The position behind white space and this token."""
    near = bytes(body[position : position + 64])
    rest = near.lstrip(b" \t\r\n")
    if not rest.startswith(token):
        raise NotFlatError
    return position + len(near) - len(rest) + len(token)


def from_buffer(row: Datatype, data: Any) -> NDArray[Any] | None:
    """Numbers of a simdjson array, flattened; None where they are not all of the kind that the datatype needs."""
    kind = _BUFFER_KINDS.get(row.dtype.kind)
    if kind is None:
        return None
    try:
        return np.frombuffer(data.as_buffer(of_type=kind[0]), kind[1])
    except (TypeError, ValueError):
        return None


def numbers(text: Chunk, row: Datatype) -> NDArray[Any]:
    """What an array holds: large floats in the datatype asked for; integers wide, so that their range can be checked."""
    if len(text) <= _WINDOW:
        return _parsed(bytes(text), row)
    parts = []
    for piece in _pieces(text):
        checkpoint()
        part = _parsed(piece, row)
        with np.errstate(over="ignore"):
            parts.append(part.astype(row.dtype) if row.dtype.kind == "f" else part)
    return np.concatenate(parts)


def _parsed(text: bytes, row: Datatype) -> NDArray[Any]:
    try:
        found = from_buffer(row, simdjson.Parser().parse(b"[%b]" % text))
    except (ValueError, RuntimeError):  # the latter for integers beyond 64 bits and for what is nested deeply
        raise NotFlatError from None
    if found is None or not found.size:
        raise NotFlatError  # other elements, a comma too many, or an empty array
    return found


def _pieces(text: Chunk) -> Iterator[bytes]:
    """Cut at commas."""
    position = 0
    while True:
        piece = bytes(text[position : position + _WINDOW])
        if position + len(piece) == len(text):
            yield piece
            return
        cut = piece.rfind(b",")
        if cut < 0:
            raise NotFlatError
        yield piece[:cut]
        position += cut + 1


# -- writing -----------------------------------------------------------------------------------------------------------
def numbers_as_json(array: NDArray[Any]) -> orjson.Fragment:
    """A flat array for orjson; numbers that are not finite are the tokens NaN, Infinity and -Infinity."""
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

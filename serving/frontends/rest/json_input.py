"""Reads requests in JSON, and their tensors: lists of numbers, booleans or strings, flat or nested in row-major order.

A body is read in one of two ways. `cut_arrays` cuts out the arrays: the rest, the outline, is the same for each request of most
clients and need not be parsed again. `load_json` parses any other body whole. Large bodies are parsed by simdjson, which gives
the numbers of an array as one buffer, without a Python object for each number.

A parser in C holds the interpreter's lock until it is done: 6 ms for each megabyte. In this time the event loop stands still,
even if the parser runs on another thread. Large arrays are therefore read in pieces, so that the loop can run between them.
JSON has no NaN or infinity; like Triton, this module reads the tokens NaN, Infinity and -Infinity.
"""

import itertools
import json
import re
import secrets
from collections.abc import Iterator, Sized
from typing import Any, Literal

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.core.datatypes import DATATYPES, Datatype
from serving.core.errors import ServingError, invalid
from serving.frontends.http1.message import Chunk
from serving.frontends.shared.worker_threads import checkpoint

LARGE = 256 << 10  # bytes of a body; a parser takes less than 2 ms for a smaller one
_WINDOW = 128 << 10  # bytes that are searched or parsed in one step
# The mark in the place of an array that was cut out of a body; no client can guess it.
MARK = secrets.token_hex(8)
MARK_TEXT = f'"{MARK}"'.encode()
_DATA = b'"data":'
_DATA_MARK = _DATA + MARK_TEXT
_KEY = re.compile(b'"data"')
MAX_DEPTH = 32  # levels of nested arrays
_BRACKET = ord("[")
_OPENING = re.compile(rb" ?(\[{1,%d})" % MAX_DEPTH)
_END = re.compile(b"]")
_KEY_SIZE = 6
MAX_ARRAYS = 4096  # arrays of one request
# Kind of a numpy dtype -> simdjson's name for a buffer of such numbers, and the dtype of that buffer.
_BUFFER_KINDS: dict[str, tuple[Literal["d", "i", "u"], np.dtype[Any]]] = {
    "f": ("d", np.dtype(np.float64)),
    "i": ("i", np.dtype(np.int64)),
    "u": ("u", np.dtype(np.uint64)),
}
SIMDJSON_FROM = 2048  # bytes; for a smaller body orjson is faster
SMALL_TEXT = 1024  # bytes of an array; for a smaller one Python objects are faster than numpy's checks of all elements
MAX_TENSORS = 4096  # inputs or outputs of one request
MAX_PARAMETERS = 4096  # parameters of a request, or of one of its tensors
MAX_PARAMETERS_TEXT = 1 << 20  # bytes
_REQUEST = ("id", "parameters", "inputs", "outputs")
_TENSOR = ("name", "datatype", "shape", "data", "parameters")
_CHECKED = 8 << 10  # elements between two checks that the client still waits
_MISSING = object()
_SCALARS = frozenset((bool, int, float))
_TEXTS = frozenset((str,))
# Datatype -> the smallest and the largest integer that it holds.
_LIMITS = {
    row.name: (int(np.iinfo(row.dtype).min), int(np.iinfo(row.dtype).max))
    for row in DATATYPES.values()
    if row.dtype.kind in "iu"
}


# -- flat arrays, apart from the rest ----------------------------------------------------------------------------------
class NotFlatError(Exception):
    """The body has to be parsed whole: it may be wrong, or have arrays that are not flat."""


def cut_arrays(body: bytes) -> tuple[bytes, list[Chunk]]:
    """Return the outline, with MARK in place of each array under a key "data", flat or nested, and the texts of the arrays.

    The caller has to parse both: a text may be anything that ends with a bracket, and each mark has to be the data of an input.
    If the body is JSON, each "data" that is found is a key, because quotes inside of a string would be escaped. NotFlatError
    for too many arrays.
    """
    pieces = body.split(_DATA)
    texts: list[Chunk] = []
    if len(pieces) == 1:
        return body, texts
    if len(pieces) > MAX_ARRAYS:
        raise NotFlatError
    for number in range(1, len(pieces)):
        piece = pieces[number]
        text, closing, behind = piece.partition(b"]")
        if len(text) > 2 and (text[1] == _BRACKET or text[2] == _BRACKET):
            stop = _end_of_nested(piece)
            texts.append(piece[:stop])
            pieces[number] = piece[stop:]
        else:
            texts.append(text + closing)
            pieces[number] = behind
    return _DATA_MARK.join(pieces), texts


def _end_of_nested(piece: bytes) -> int:
    """Return where an evenly nested array ends: after as many closing brackets in a row as there are opening ones at its
    beginning."""
    found = _OPENING.match(piece)
    closing = b"]" * (len(found[1]) if found else 1)
    stop = piece.find(closing)
    if stop < 0:
        raise NotFlatError
    return stop + len(closing)


def cut_large_arrays(body: Chunk) -> tuple[bytes, list[Chunk]]:
    """Do the same as `cut_arrays`, without holding the interpreter's lock for long. NotFlatError if the value of a key "data"
    is not a flat array."""
    pieces: list[Chunk] = []
    texts: list[Chunk] = []
    position = 0
    while (found := _find(body, _KEY, position)) >= 0:
        start = _after(body, _after(body, found + _KEY_SIZE, b":"), b"[") - 1
        stop = _find(body, _END, start) + 1
        if not stop or body[found - 1] == ord("\\") or len(texts) == MAX_ARRAYS:
            raise NotFlatError
        pieces += (body[position:start], MARK_TEXT)
        texts.append(body[start:stop])
        position = stop
    return b"".join((*pieces, body[position:])), texts


def _find(body: Chunk, token: re.Pattern[bytes], position: int) -> int:
    """Return the position of the next such token, or -1. This reads no further than the token, and copies nothing."""
    while position < len(body):
        checkpoint()
        found = token.search(body, position, position + _WINDOW)
        if found:
            return found.start()
        position += _WINDOW - (_KEY_SIZE - 1)
    return -1


def _after(body: Chunk, position: int, token: bytes) -> int:
    """Return the position after white space and this token."""
    near = bytes(body[position : position + 64])
    rest = near.lstrip(b" \t\r\n")
    if not rest.startswith(token):
        raise NotFlatError
    return position + len(near) - len(rest) + len(token)


def from_buffer(row: Datatype, data: simdjson.Array) -> NDArray[Any] | None:
    """Return the numbers of a simdjson array, flattened; None if they are not all of the kind that the datatype needs."""
    kind = _BUFFER_KINDS.get(row.dtype.kind)
    if kind is None:
        return None
    # simdjson annotates the buffer as bytes, and a compiled module would check that; but the buffer is another object.
    array: Any = data
    try:
        return np.frombuffer(array.as_buffer(of_type=kind[0]), kind[1])
    except (TypeError, ValueError):
        return None


def numbers(text: Chunk, row: Datatype) -> NDArray[Any]:
    """Return the numbers in an array's text as a flat array. The floats of a long text are converted to the datatype of `row`;
    integers are not, so that their range can be checked. NotFlatError for any other text."""
    if len(text) <= _WINDOW:
        return _parsed(bytes(text), row)
    parts = []
    for piece in _pieces(text[_after(text, 0, b"[") : -1]):
        checkpoint()
        part = _parsed(b"[%b]" % piece, row)
        with np.errstate(over="ignore"):
            parts.append(part.astype(row.dtype) if row.dtype.kind == "f" else part)
    return np.concatenate(parts)


def _parsed(text: bytes, row: Datatype) -> NDArray[Any]:
    try:
        elements = simdjson.Parser().parse(text)
        found = from_buffer(row, elements) if isinstance(elements, simdjson.Array) else None
    except (ValueError, RuntimeError):  # RuntimeError for integers beyond 64 bits, and for deep nesting
        raise NotFlatError from None
    if found is None or not found.size:
        raise NotFlatError  # other elements, a comma too many, or an empty array
    return found


def _pieces(text: Chunk) -> Iterator[bytes]:
    """Yield the text in pieces that end at commas."""
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


# -- whole bodies -------------------------------------------------------------------------------------------------------
def load_json(body: Chunk) -> object:
    """Return the parsed body. A large body has to be an inference request; only its known fields are returned, and each "data"
    of `inputs` as a simdjson array. INVALID_ARG if the body is not JSON."""
    try:
        return _load_large(body) if len(body) >= SIMDJSON_FROM else orjson.loads(body)
    except (ValueError, TypeError, RuntimeError) as error:  # RecursionError too
        return _load_leniently(body, error)


def _load_large(body: Chunk) -> dict[str, object]:
    # A parser refuses to be reused while one of its values lives; a new parser costs little compared with a large body.
    document = simdjson.Parser().parse(bytes(body) if isinstance(body, memoryview) else body)
    found = _members(document, _REQUEST)
    for name in ("inputs", "outputs"):
        tensors = found.get(name)
        if isinstance(tensors, simdjson.Array):
            check_count(f"'{name}'", tensors, MAX_TENSORS)
            found[name] = [_tensor(item) for item in tensors]
    return {name: value if name in ("inputs", "outputs") else _plain(value) for name, value in found.items()}


def _tensor(item: object) -> dict[str, object]:
    return {name: value if name == "data" else _plain(value) for name, value in _members(item, _TENSOR).items()}


def _members(value: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return the members with these names that an object has. simdjson finds a member by a walk over all keys, so that a lookup
    of each key that the client sent would take quadratic time."""
    if not isinstance(value, simdjson.Object):
        raise invalid("expected the request, and each of its inputs and outputs, to be a JSON object")
    return {name: member for name in names if (member := value.get(name, _MISSING)) is not _MISSING}


def _plain(value: object) -> object:
    """Return a value as Python objects; INVALID_ARG if it is larger than a request needs, because a short text can make many
    objects."""
    if not isinstance(value, simdjson.Object | simdjson.Array):
        return value
    check_count("an object or array of the request", value, MAX_PARAMETERS)
    if len(value.mini) > MAX_PARAMETERS_TEXT:
        raise invalid(f"an object or array of the request is longer than {MAX_PARAMETERS_TEXT} bytes")
    return value.as_dict() if isinstance(value, simdjson.Object) else value.as_list()


def check_count(what: str, members: Sized, limit: int) -> None:
    """Raise INVALID_ARG if there are more members than `limit`."""
    if len(members) > limit:
        raise invalid(f"expected at most {limit} members in {what}, got {len(members)}")


def _load_leniently(body: Chunk, error: Exception) -> object:
    """Parse a body that a fast parser refuses but Triton's accepts: one with NaN or Infinity, or with integers beyond 64 bits,
    which simdjson refuses."""
    content = bytes(body)
    load = json.loads if b"NaN" in content or b"Infinity" in content else orjson.loads
    try:
        return load(content)
    except (ValueError, RecursionError):
        pass
    raise invalid(f"failed to parse the request JSON: {error}") from None


# -- tensors ------------------------------------------------------------------------------------------------------------
def array_from_json(name: str, row: Datatype, shape: tuple[int, ...], count: int, data: object) -> NDArray[Any]:
    """Return the tensor of an input's `data`: a list, a simdjson array, or numbers already read as a flat array.

    row: the input's datatype. count: the number of elements of `shape`. INVALID_ARG for data of another datatype or shape."""
    if row.name in ("FP16", "BF16"):
        raise invalid(f"input '{name}': {row.name} has no JSON form, send it as binary data")
    flat: NDArray[Any] | None
    if isinstance(data, np.ndarray):
        flat = data
    elif isinstance(data, simdjson.Array):
        flat = from_buffer(row, data)
    else:
        flat = None
    if flat is None:
        if not isinstance(data, list | simdjson.Array):
            raise invalid(f"input '{name}': expected 'data' to be an array")
        flat = _strings(name, data) if row.name == "BYTES" else _numbers(name, row, data)
    if flat.size != count:
        raise invalid(f"input '{name}': shape {list(shape)} has {count} elements, but 'data' has {flat.size}")
    return _cast(name, row, flat).reshape(shape)


def _numbers(name: str, row: Datatype, data: list[Any] | simdjson.Array) -> NDArray[Any]:
    """Return the array of numbers that are Python objects. Other elements are refused before numpy gets them: from a list with
    one text numpy would make an array of texts, all as wide as the longest."""
    elements = flattened(name, data)
    if not _SCALARS.issuperset(map(type, elements)):
        raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
    try:
        flat = np.array(elements)
    except OverflowError:
        raise invalid(f"input '{name}': a number in 'data' is too large") from None
    if row.name == "UINT64" and flat.dtype.kind == "f":
        flat = _wide_integers(flat, elements)  # numpy makes floats of small and huge integers together
    allowed = {"b": "b", "f": "fiu"}.get(row.dtype.kind, "iu")
    if flat.size and flat.dtype.kind not in allowed:
        raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
    return flat


def flattened(name: str, data: list[Any] | simdjson.Array) -> list[Any]:
    """Return the elements, of any type, in row-major order. INVALID_ARG unless all arrays at the same depth have the same
    length, and all elements are at the same depth."""
    if isinstance(data, simdjson.Array):
        return list(_elements(name, data))
    for _ in range(MAX_DEPTH):
        kinds = set(map(type, data))
        if list not in kinds:
            return data
        if len(kinds) > 1 or len(set(map(len, data))) > 1:
            break
        data = list(itertools.chain.from_iterable(data))
    raise _uneven(name)


def _elements(name: str, data: simdjson.Array) -> Iterator[object]:
    """Yield the elements of a large array. The work may be abandoned between two elements."""
    lengths: dict[int, int] = {}
    depth_of_elements = 0
    pending = [iter(data)]
    counts = [len(data)]
    for number in itertools.count():
        if not number % _CHECKED:
            checkpoint()
        if not pending:
            return
        element = next(pending[-1], _MISSING)
        depth = len(pending)
        if element is _MISSING:
            pending.pop()
            length = counts.pop()
            if lengths.setdefault(depth, length) != length:
                raise _uneven(name)
        elif isinstance(element, simdjson.Array):
            if depth in (MAX_DEPTH, depth_of_elements):
                raise _uneven(name)
            pending.append(iter(element))
            counts.append(len(element))
        else:
            depth_of_elements = depth_of_elements or depth
            if depth != depth_of_elements:
                raise _uneven(name)
            yield element


def _uneven(name: str) -> ServingError:
    return invalid(f"input '{name}': 'data' is neither flat nor nested evenly, at most {MAX_DEPTH} deep")


def _wide_integers(flat: NDArray[Any], data: list[object]) -> NDArray[Any]:
    exact = np.array(data, dtype=np.object_).reshape(-1)
    try:
        return exact.astype(np.uint64) if all(type(element) is int for element in exact) else flat
    except OverflowError:
        return flat


def _cast(name: str, row: Datatype, flat: NDArray[Any]) -> NDArray[Any]:
    if flat.dtype == row.dtype:
        return flat
    limits = _LIMITS.get(row.name)
    if limits is None:
        with np.errstate(over="ignore"):
            return flat.astype(row.dtype)
    if flat.size and (int(flat.min()) < limits[0] or int(flat.max()) > limits[1]):
        raise invalid(f"input '{name}': an element of 'data' is outside the range of {row.name}")
    return flat.astype(row.dtype)


def _strings(name: str, data: list[Any] | simdjson.Array) -> NDArray[Any]:
    elements = flattened(name, data)
    if not _TEXTS.issuperset(map(type, elements)):
        raise invalid(f"input '{name}': expected strings in 'data', got something else")
    result = np.empty(len(elements), dtype=np.object_)
    result[:] = [element.encode("utf-8", "surrogatepass") for element in elements]
    return result

"""Reads requests in JSON, and their tensors: lists of numbers, booleans or strings, flat or nested in row-major order.

`cut_arrays` cuts out the arrays of a body. The rest, the outline, is the same for all requests of most clients, and need not be
parsed again. `load_json` parses any other body completely. simdjson parses large bodies. It returns the numbers of an array as
one buffer, without a Python object for each number.
A parser in C holds the interpreter's lock until it has finished: 6 ms for each megabyte. This blocks the event loop, even if
the parser runs on another thread. Large arrays are therefore read in pieces, so that the loop can run between them.
JSON has no NaN or infinity. Like Triton, this module accepts the tokens NaN, Infinity and -Infinity.
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

LARGE = 256 << 10  # bytes of a body; smaller bodies are parsed in less than 2 ms
_WINDOW = 128 << 10  # bytes that are searched or parsed in one step
# The mark that replaces an array that was cut out of a body. No client can guess it.
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
# kind of a numpy dtype -> simdjson's name for a buffer of these numbers, and the dtype of the buffer
_BUFFER_KINDS: dict[str, tuple[Literal["d", "i", "u"], np.dtype[Any]]] = {
    "f": ("d", np.dtype(np.float64)),
    "i": ("i", np.dtype(np.int64)),
    "u": ("u", np.dtype(np.uint64)),
}
SIMDJSON_FROM = 2048  # bytes of a body; orjson is faster for smaller bodies
SMALL_TEXT = 1024  # bytes of an array; for smaller arrays, checks of Python objects are faster than numpy's checks
MAX_TENSORS = 4096  # inputs or outputs of one request
MAX_PARAMETERS = 4096  # parameters of a request or of one tensor
MAX_PARAMETERS_TEXT = 1 << 20  # bytes
_REQUEST = ("id", "parameters", "inputs", "outputs")
_TENSOR = ("name", "datatype", "shape", "data", "parameters")
_CHECKED = 8 << 10  # elements between two checks of whether the client still waits
_MISSING = object()
_SCALARS = frozenset((bool, int, float))
_TEXTS = frozenset((str,))
# datatype -> its smallest and its largest integer
_LIMITS = {
    row.name: (int(np.iinfo(row.dtype).min), int(np.iinfo(row.dtype).max))
    for row in DATATYPES.values()
    if row.dtype.kind in "iu"
}


# -- arrays of tensors, cut out so that the rest of the body is parsed without them -----------------------------------
class NotFlatError(Exception):
    """The body must be parsed completely, because it may be wrong, or have arrays that are not flat."""


def cut_arrays(body: bytes) -> tuple[bytes, list[Chunk]]:
    """Return the outline, in which MARK replaces each array under a key "data", flat or nested, and the texts of the arrays.

    The caller must check both: that each text is an array, and that each mark is the data of an input. If the body is JSON,
    each `"data":` that is found is a key, because quotes inside of a string would be escaped. Raises NotFlatError if there are
    too many arrays.
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
    """Return where an evenly nested array ends: after as many closing brackets in a row as there are opening brackets at the
    beginning."""
    found = _OPENING.match(piece)
    closing = b"]" * (len(found[1]) if found else 1)
    stop = piece.find(closing)
    if stop < 0:
        raise NotFlatError
    return stop + len(closing)


def cut_large_arrays(body: Chunk) -> tuple[bytes, list[Chunk]]:
    """Do the same as `cut_arrays`, without holding the interpreter's lock for long. Raises NotFlatError if the value of a key
    "data" is not a flat array."""
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
    """Return the position of the next match of `token`, or -1. Nothing is copied."""
    while position < len(body):
        checkpoint()
        found = token.search(body, position, position + _WINDOW)
        if found:
            return found.start()
        position += _WINDOW - (_KEY_SIZE - 1)
    return -1


def _after(body: Chunk, position: int, token: bytes) -> int:
    """Return the position after white space and `token`. Raises NotFlatError if the token is not there."""
    near = bytes(body[position : position + 64])
    rest = near.lstrip(b" \t\r\n")
    if not rest.startswith(token):
        raise NotFlatError
    return position + len(near) - len(rest) + len(token)


def from_buffer(row: Datatype, data: simdjson.Array) -> NDArray[Any] | None:
    """Return the numbers of a simdjson array, flattened, or None if some are not of the kind that the datatype needs."""
    kind = _BUFFER_KINDS.get(row.dtype.kind)
    if kind is None:
        return None
    # Any: simdjson declares the buffer as bytes, which it is not, and a compiled module would check that.
    array: Any = data
    try:
        return np.frombuffer(array.as_buffer(of_type=kind[0]), kind[1])
    except (TypeError, ValueError):
        return None


def numbers(text: Chunk, row: Datatype) -> NDArray[Any]:
    """Return the numbers in an array's text as a flat array. Floats of a long text are converted to the datatype of `row`.
    Integers are not, so that their range can be checked. Raises NotFlatError if the text is not an array of numbers."""
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


# -- complete bodies ----------------------------------------------------------------------------------------------------
def load_json(body: Chunk) -> object:
    """Return the parsed body. A large body must be an inference request. Only its known fields are returned, and each "data" of
    `inputs` is a simdjson array. Raises INVALID_ARG if the body is not JSON."""
    try:
        return _load_large(body) if len(body) >= SIMDJSON_FROM else orjson.loads(body)
    except (ValueError, TypeError, RuntimeError) as error:  # RecursionError too
        return _load_leniently(body, error)


def _load_large(body: Chunk) -> dict[str, object]:
    # A parser cannot be reused while one of its values exists. A new parser is cheap compared with a large body.
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
    """Return the members of an object that have these names. A simdjson look-up walks over all keys, so looking up each key
    that the client sent would take quadratic time."""
    if not isinstance(value, simdjson.Object):
        raise invalid("expected the request, and each of its inputs and outputs, to be a JSON object")
    return {name: member for name in names if (member := value.get(name, _MISSING)) is not _MISSING}


def _plain(value: object) -> object:
    """Return a value as Python objects. Raises INVALID_ARG if it is larger than a request needs, because a short text can make
    many objects."""
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
    """Parse a body that a fast parser refuses but Triton's parser accepts, because it has NaN, Infinity, or integers beyond 64
    bits."""
    content = bytes(body)
    load = json.loads if b"NaN" in content or b"Infinity" in content else orjson.loads
    try:
        return load(content)
    except (ValueError, RecursionError):
        pass
    raise invalid(f"failed to parse the request JSON: {error}") from None


# -- tensors ------------------------------------------------------------------------------------------------------------
def array_from_json(name: str, row: Datatype, shape: tuple[int, ...], count: int, data: object) -> NDArray[Any]:
    """Return the tensor of an input. data: a list, a simdjson array, or numbers that were already read as a flat array.

    row: the input's datatype. count: the number of elements of `shape`. Raises INVALID_ARG for another datatype or shape."""
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
    """Convert Python numbers to an array. Other elements are refused before numpy gets them: a single text would turn all
    elements into texts of its length."""
    elements = flattened(name, data)
    if not _SCALARS.issuperset(map(type, elements)):
        raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
    try:
        flat = np.array(elements)
    except OverflowError:
        raise invalid(f"input '{name}': a number in 'data' is too large") from None
    if row.name == "UINT64" and flat.dtype.kind == "f":
        flat = _wide_integers(flat, elements)  # numpy converts a mix of small and huge integers to floats
    allowed = {"b": "b", "f": "fiu"}.get(row.dtype.kind, "iu")
    if flat.size and flat.dtype.kind not in allowed:
        raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
    return flat


def flattened(name: str, data: list[Any] | simdjson.Array) -> list[Any]:
    """Return the elements, of any type, in row-major order. Raises INVALID_ARG unless all arrays at the same depth have the
    same length, and all elements are at the same depth."""
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
    """Yield the elements of a large array, with checkpoints between them."""
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

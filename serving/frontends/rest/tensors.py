"""Tensors inside JSON: lists of numbers, booleans or strings, flat or nested in row-major order, to arrays and back.

Large bodies are parsed by simdjson, whose arrays give their numbers as one buffer without a Python object for each.
JSON has no NaN or infinity; like Triton this writes and reads the tokens NaN, Infinity and -Infinity.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import simdjson
from numpy.typing import NDArray

from serving.core.datatypes import Datatype
from serving.core.errors import ServingError, invalid
from serving.frontends.http1.message import Chunk
from serving.frontends.rest.json_pieces import exact_json, from_buffer
from serving.frontends.shared.worker_threads import checkpoint

SIMDJSON_FROM = 2048  # bytes; below, orjson is faster
MAX_TENSORS = 4096  # inputs or outputs of one request
MAX_PARAMETERS = 4096  # of one request, or of one of its tensors
MAX_PARAMETERS_TEXT = 1 << 20  # bytes
MAX_DEPTH = 32  # of an array's nesting
_REQUEST = ("id", "parameters", "inputs", "outputs")
_TENSOR = ("name", "datatype", "shape", "data", "parameters")
_CHECKED = 8 << 10  # elements between two looks at whether anybody still waits
_MISSING = object()
_SCALARS = frozenset((bool, int, float))


def load_json(body: Chunk) -> Any:
    """The parsed body. Of a large one what an inference request knows; each "data" of `inputs` is a simdjson array."""
    try:
        return _load_large(body) if len(body) >= SIMDJSON_FROM else orjson.loads(body)
    except (ValueError, TypeError, RuntimeError) as error:  # RecursionError too
        return _load_leniently(body, error)


def _load_large(body: Chunk) -> Any:
    # A parser refuses to be reused while a value of it lives; making one costs little beside a large body.
    document = simdjson.Parser().parse(bytes(body) if isinstance(body, memoryview) else body)
    found = _members(document, _REQUEST)
    for name in ("inputs", "outputs"):
        tensors = found.get(name)
        if isinstance(tensors, simdjson.Array):
            check_count(f"'{name}'", tensors, MAX_TENSORS)
            found[name] = [_tensor(item) for item in tensors]
    return {name: value if name in ("inputs", "outputs") else _plain(value) for name, value in found.items()}


def _tensor(item: Any) -> dict[str, Any]:
    return {name: value if name == "data" else _plain(value) for name, value in _members(item, _TENSOR).items()}


def _members(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Those of these members that an object has. simdjson finds one by a walk over all keys: nothing is looked up for each
    key that a client has written."""
    if not isinstance(value, simdjson.Object):
        raise invalid("expected the request, and each of its inputs and outputs, to be a JSON object")
    return {name: member for name in names if (member := value.get(name, _MISSING)) is not _MISSING}


def _plain(value: Any) -> Any:
    """As Python objects, of which a short text makes many: no more than a request needs."""
    if not isinstance(value, simdjson.Object | simdjson.Array):
        return value
    check_count("an object or array of the request", value, MAX_PARAMETERS)
    if len(value.mini) > MAX_PARAMETERS_TEXT:
        raise invalid(f"an object or array of the request is longer than {MAX_PARAMETERS_TEXT} bytes")
    return value.as_dict() if isinstance(value, simdjson.Object) else value.as_list()


def is_array(value: Any) -> bool:
    return isinstance(value, list | simdjson.Array)


def check_count(what: str, members: Any, limit: int) -> None:
    if len(members) > limit:
        raise too_many(what, members, limit)


def too_many(what: str, members: Any, limit: int) -> ServingError:
    return invalid(f"expected at most {limit} members in {what}, got {len(members)}")


def _load_leniently(body: Chunk, error: Exception) -> Any:
    """What a fast parser refuses and Triton's takes: NaN and Infinity, and for simdjson integers beyond 64 bits."""
    content = bytes(body)
    load = json.loads if b"NaN" in content or b"Infinity" in content else orjson.loads
    try:
        return load(content)
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
    else:
        flat = None
    if flat is None:
        if not isinstance(data, list | simdjson.Array):
            raise invalid(f"input '{name}': expected 'data' to be an array")
        flat = _strings(name, data) if row.name == "BYTES" else _numbers(name, row, data)
    if flat.size != count:
        raise invalid(f"input '{name}': shape {list(shape)} has {count} elements, but 'data' has {flat.size}")
    return _cast(name, row, flat).reshape(shape)


def _numbers(name: str, row: Datatype, data: Any) -> NDArray[Any]:
    """From elements that are Python objects. numpy makes an array of texts as wide as the longest one out of a list with one
    text in it, so that what is no number never gets there."""
    flat_list = data
    if not isinstance(data, list) or not _SCALARS.issuperset(map(type, data)):
        flat_list = []
        for element in _flattened(name, data):
            if type(element) not in _SCALARS:
                raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
            flat_list.append(element)
    try:
        flat = np.array(flat_list)
    except OverflowError:
        raise invalid(f"input '{name}': a number in 'data' is too large") from None
    if row.name == "UINT64" and flat.dtype.kind == "f":
        flat = _wide_integers(flat, flat_list)  # numpy makes a float of small and huge integers together
    allowed = {"b": "b", "f": "fiu"}.get(row.dtype.kind, "iu")
    if flat.size and flat.dtype.kind not in allowed:
        raise invalid(f"input '{name}': expected {row.name} elements in 'data', got something else")
    return flat


def _flattened(name: str, data: Any) -> Iterator[Any]:
    """The elements in row-major order, whatever they are. Arrays are nested evenly: those of one depth are as long as each
    other, and elements stand at one depth."""
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
        elif isinstance(element, list | simdjson.Array):
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


def _strings(name: str, data: Any) -> NDArray[Any]:
    flat: list[bytes] = []
    for element in _flattened(name, data):
        if not isinstance(element, str):
            raise invalid(f"input '{name}': expected strings in 'data', got something else")
        flat.append(element.encode("utf-8", "surrogatepass"))
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

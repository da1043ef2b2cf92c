"""Makes a handler's batch: a list of dicts, one for each request, and the headers and ids of the requests.

Without declared inputs there is one input of bytes, `data`. TorchServe's frontends describe its elements in parameters:

    torchserve_parts    JSON: [[name, content type or null, file name or null], ...], one for each element
    torchserve_headers  JSON: [[name, value], ...], the headers as the client sent them
    torchserve_explain  whether the request asks for an explanation
    content_type        the type of the only element, from a client of the V2 protocol

A part with a content type is decoded accordingly: as JSON, or as text, which is read as UTF-8 whatever its charset. A part
without a type, or that cannot be decoded, stays a bytearray. If inputs are declared, each of their rows is a dict of arrays.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from serving.backends.channel.channel import loads
from serving.backends.channel.messages import RequestDetails, RequestMessage, TensorRow
from serving.backends.channel.tensors import Array, Memory, deserialize, dtype_of

Entry = dict[str, Any]
Headers = dict[str, Any]
Decoder = Callable[[bytearray], Any]
Part = tuple[str, Decoder | None]

_DATA = "data"
_BODY = "body"
_NO_DETAILS: RequestDetails = {}
_NO_PARAMETERS: Mapping[str, Any] = {}
_LENGTH = struct.Struct("<I")  # the length before each element
_DESCRIBING = ("torchserve_parts", "torchserve_headers", "torchserve_explain", "content_type")  # parameters
_MAX_KNOWN = 512  # how many sets of the parameters in _DESCRIBING are remembered
T = TypeVar("T")


class _Described(NamedTuple):
    """The parameters of a request, decoded.

    parts: the names and decoders of its elements, or None if they are not described. decode: the decoder of the only element.
    headers: the headers as handlers see them.
    """

    parts: list[Part] | None
    decode: Decoder | None
    headers: Headers


_NOTHING = _Described(None, None, {"explain": "False", "url_path": ""})


class InputReader:
    """Reads the requests of one model."""

    def __init__(self, inputs: Sequence[str] | None, batched: bool, as_parts: bool = False) -> None:
        """inputs: the names of the inputs, or None for the one input of parts. batched: whether each row is a request.
        as_parts: whether each input has bytes and becomes a part with its name."""
        self._inputs = inputs
        self._batched = batched
        self._as_parts = as_parts
        self._decodes = True
        self._known: dict[tuple[object, ...], _Described] = {}  # decoded parameters, which clients repeat

    def leave_encoded(self) -> None:
        """Leave all parts undecoded, whatever their types."""
        self._decodes = False

    def read(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory
    ) -> tuple[list[Entry], list[Headers], dict[int, str]]:
        """Return the entries of a batch, with the headers and the id of each entry.

        A request of several rows has several entries. Entries may share one object of headers if their clients
        sent the same headers.
        """
        entries: list[Entry] = []
        headers: list[Headers] = []
        ids: dict[int, str] = {}
        last, described = _NO_PARAMETERS, _NOTHING
        with memoryview(memory) as view:
            for own, (identifier, rows, tensors, given) in enumerate(requests, key):
                details = given or _NO_DETAILS
                parameters = details.get("parameters", _NO_PARAMETERS)
                if parameters is not last:
                    last, described = parameters, self._describe(parameters)
                if self._inputs is None:
                    entries += self._parts_of(tensors[0], described, view)
                elif self._as_parts:
                    entries += _named_parts(tensors, view)
                else:
                    entries += _rows_of(tensors, rows if self._batched else None, view)
                sent = described.headers if "sequence" not in details else _of_sequence(details) | described.headers
                for index in range(len(headers), len(entries)):
                    headers.append(sent)
                    ids[index] = identifier or str(own)
        return entries, headers, ids

    def _parts_of(self, row: TensorRow, described: _Described, view: memoryview) -> list[Entry]:
        """Return the entries for the input `data`, one for each of its rows."""
        _, _, shape, offset, length = row
        parts = described.parts
        values = _values(view, offset, offset + length)
        rows = shape[0] if self._batched else 1
        if parts is not None and rows == 1:
            return [_entry(parts, values)]
        each = len(values) // rows
        if parts is None and each == 1:
            decode = described.decode
            return [SingleElement(value if decode is None else decode(value)) for value in values]
        parts = parts or [(f"{_DATA}{index or ''}", None) for index in range(each)]
        return [_entry(parts, values[row * each : (row + 1) * each]) for row in range(rows)]

    def _describe(self, parameters: Mapping[str, Any]) -> _Described:
        key = tuple(map(parameters.get, _DESCRIBING))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = _read(*key)
            if not self._decodes:
                found = found._replace(parts=found.parts and [(name, None) for name, _ in found.parts], decode=None)
            self._known[key] = found
        return found


def _read(parts: object, headers: object, explain: object, content_type: object) -> _Described:
    """Decode the parameters of _DESCRIBING. Malformed values, as a client of the V2 protocol may send them, are ignored."""
    found: Headers = {"url_path": ""}
    found |= _parse(_types_of_parts, parts) or {}
    found |= _parse(_headers_by_name, headers) or {}
    found["explain"] = "True" if explain else "False"  # replaces a header of that name
    return _Described(_parse(_names_and_decoders, parts), _parse(_decoder, content_type), found)


def _of_sequence(details: RequestDetails) -> Headers:
    """Return the headers for a sequence of the V2 protocol. TorchServe's clients send these headers themselves."""
    flags = details["flags"]
    return {
        "ts_request_sequence_id": str(details["sequence"]),
        "ts_request_sequence_start": str(bool(flags & 1)),
        "ts_request_sequence_end": str(bool(flags & 2)),
    }


class SingleElement(Entry):
    """An entry with one element, from a client of the V2 protocol. Handlers find the element as `data` and also as `body`, the
    name that TorchServe's clients send."""

    def __init__(self, value: Any) -> None:
        super().__init__({_DATA: value})

    def __missing__(self, key: str) -> Any:
        if key == _BODY:
            return self[_DATA]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return key == _BODY or super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[_DATA] if key == _BODY else super().get(key, default)


def _entry(parts: list[Part], values: Sequence[bytearray]) -> Entry:
    """Return the parts of one request by their names. If several parts have the same name, the last one stays."""
    return {
        name: value if decode is None else decode(value) for (name, decode), value in zip(parts, values, strict=False)
    }


def _values(memory: memoryview, start: int, end: int) -> list[bytearray]:
    """Return copies of the elements of a BYTES tensor, because the server reuses the memory."""
    values = []
    while start < end:
        (length,) = _LENGTH.unpack_from(memory, start)
        begin, start = start + 4, start + 4 + length
        values.append(bytearray(memory[begin:start]))
    return values


def _named_parts(tensors: Sequence[TensorRow], memory: memoryview) -> list[Entry]:
    """Return an entry for each row: the parts by the names of the tensors, which have one element in each row."""
    columns = {name: _values(memory, offset, offset + length) for name, _, _, offset, length in tensors}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rows_of(tensors: Sequence[TensorRow], rows: int | None, memory: memoryview) -> list[Entry]:
    """Return an entry for each row of the tensors, or one entry with all tensors if they have no batch dimension."""
    arrays = {name: _array(kind, shape, memory, offset, length) for name, kind, shape, offset, length in tensors}
    if rows is None:
        return [dict(arrays)]
    return [{name: array[row] for name, array in arrays.items()} for row in range(rows)]


def _array(kind: str, shape: Sequence[int], memory: memoryview, offset: int, length: int) -> Array:
    """Return a copy of a tensor of a request."""
    content = bytes(memory[offset : offset + length])
    if kind == "BYTES":
        return deserialize(content, list(shape))
    return np.frombuffer(bytearray(content), dtype_of(kind)).reshape(shape)


def _parse(parse: Callable[[str], T], text: object) -> T | None:
    """Return the parsed text, or None for a malformed text or another value."""
    try:
        return parse(text) if isinstance(text, str) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None


def _names_and_decoders(text: str) -> list[Part]:
    return [(str(name), _decoder(kind) if kind else None) for name, kind, *_ in json.loads(text)]


def _types_of_parts(text: str) -> Headers:
    """Return the content types of parts by the names of the parts, as handlers find them among the headers."""
    return {str(name): {"content-type": kind or ""} for name, kind, *_ in json.loads(text)}


def _headers_by_name(text: str) -> Headers:
    return {str(name): str(value) for name, value in json.loads(text)}


# -- decoding by content type ------------------------------------------------------------------------------------------
def _decoder(content_type: str) -> Decoder | None:
    """Return the decoder for a content type, or None if its parts stay bytes."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/json":
        return _json
    return _text if kind.startswith("text/") else None


def _json(value: bytearray) -> Any:
    try:
        return loads(value)  # type: ignore[arg-type]  # any buffer
    except ValueError:
        pass
    try:
        return json.loads(value)  # also reads NaN, numbers of any length, UTF-16
    except (ValueError, RecursionError):
        return value


def _text(value: bytearray) -> Any:
    try:
        return value.decode()
    except ValueError:
        return value

"""A batch as a handler is given it: a list of dicts, one for each request, and of each the headers and the id.

Without declared inputs the one is `data`, of bytes. A frontend of TorchServe's says by parameters what its elements are:

    torchserve_parts    JSON: [[name, content type or null, file name or null], ...], one for each element
    torchserve_headers  JSON: [[name, value], ...] as the client sent them
    torchserve_explain  the request asks for an explanation
    content_type        of the only element, from a client of the V2 protocol

What has a content type is decoded by it: JSON, and text, which is UTF-8 whatever the type says. What has none, or cannot be
decoded, stays a bytearray. Where inputs are declared, each row of theirs is a dict of arrays.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
_NO_HEADERS: Headers = {"explain": "False", "url_path": ""}
_MAX_KNOWN = 512  # texts that repeat from request to request, kept with what they mean


class InputReader:
    """Reads the requests of one model."""

    def __init__(self, inputs: Sequence[str] | None, batched: bool, as_parts: bool = False) -> None:
        """inputs: their names; None for the one that holds parts. batched: rows are requests. as_parts: each input is one of
        bytes, and a part by its name."""
        self._inputs = inputs
        self._batched = batched
        self._as_parts = as_parts
        self._parts = _Known(_parsed_parts)
        self._headers = _Known(_parsed_headers)
        self._types_of_parts = _Known(_parsed_types)
        self._types = _Known(_decoder)

    def leave_encoded(self) -> None:
        """Hand all parts over as they came, whatever their types say."""
        self._parts = _Known(lambda text: [(name, None) for name, _ in _parsed_parts(text)])
        self._types = _Known(lambda _: None)

    def read(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory
    ) -> tuple[list[Entry], list[Headers], dict[int, str]]:
        """Return the entries of a batch, and of each the headers and the id. A request of several rows has several entries."""
        entries: list[Entry] = []
        headers: list[Headers] = []
        ids: dict[int, str] = {}
        for own, (identifier, rows, tensors, given) in enumerate(requests, key):
            details = given or _NO_DETAILS
            parameters: Mapping[str, Any] = details.get("parameters", {})
            if self._inputs is None:
                entries += self._parts_of(tensors[0], parameters, memory)
            elif self._as_parts:
                entries += _named_parts(tensors, memory)
            else:
                entries += _rows_of(tensors, rows if self._batched else None, memory)
            sent = self._headers_of(parameters, details)
            for index in range(len(headers), len(entries)):
                headers.append(dict(sent))
                ids[index] = identifier or str(own)
        return entries, headers, ids

    def _parts_of(self, row: TensorRow, parameters: Mapping[str, Any], memory: Memory) -> list[Entry]:
        """Return the entries of the input `data`: bytes, one entry for each row of theirs."""
        _, _, shape, offset, length = row
        values = _values(memory, offset, offset + length)
        rows = shape[0] if self._batched else 1
        each = len(values) // rows
        named = parameters.get("torchserve_parts")
        parts = self._parts(named) if isinstance(named, str) else None
        if parts is not None and rows == 1:
            return [_entry(parts, values)]
        if parts is None and each == 1:
            content_type = parameters.get("content_type")
            decode = self._types(content_type) if isinstance(content_type, str) else None
            return [SingleElement(value if decode is None else decode(value)) for value in values]
        parts = parts or [(f"{_DATA}{index or ''}", None) for index in range(each)]
        return [_entry(parts, values[row * each : (row + 1) * each]) for row in range(rows)]

    def _headers_of(self, parameters: Mapping[str, Any], details: RequestDetails) -> Headers:
        """Return the headers of a request as handlers see them: with the types of its parts, and what is asked for."""
        if not parameters and "sequence" not in details:
            return _NO_HEADERS
        found: Headers = {"url_path": ""}
        types = parameters.get("torchserve_parts")
        if isinstance(types, str):
            found.update(self._types_of_parts(types) or {})
        if "sequence" in details:  # of the V2 protocol; TorchServe's clients say it by these headers themselves
            flags = details["flags"]
            found["ts_request_sequence_id"] = str(details["sequence"])
            found["ts_request_sequence_start"] = str(bool(flags & 1))
            found["ts_request_sequence_end"] = str(bool(flags & 2))
        sent = parameters.get("torchserve_headers")
        if isinstance(sent, str):
            found.update(self._headers(sent) or {})
        found["explain"] = "True" if parameters.get("torchserve_explain") else "False"  # whatever the client has sent
        return found


class SingleElement(Entry):
    """An entry of a client of the V2 protocol, with one element: handlers find it as `data`, and as the `body` that they
    are given by TorchServe's clients, whichever of the two they look for."""

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
    """Return the parts of one request by their names. Of those with one name the last one stays."""
    return {
        name: value if decode is None else decode(value) for (name, decode), value in zip(parts, values, strict=False)
    }


def _values(memory: Memory, start: int, end: int) -> list[bytearray]:
    """Return the elements of a BYTES tensor, as copies: the server writes the memory again."""
    values = []
    with memoryview(memory) as view:
        while start < end:
            begin = start + 4
            start = begin + int.from_bytes(view[start:begin], "little")
            values.append(bytearray(view[begin:start]))
    return values


def _named_parts(tensors: Sequence[TensorRow], memory: Memory) -> list[Entry]:
    """Return an entry for each row of tensors that have one element in each: the parts by the tensors' names."""
    columns = {name: _values(memory, offset, offset + length) for name, _, _, offset, length in tensors}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rows_of(tensors: Sequence[TensorRow], rows: int | None, memory: Memory) -> list[Entry]:
    """Return an entry for each row of the tensors; one entry with all of them where they have no batch dimension."""
    arrays = {name: _array(kind, shape, memory, offset, length) for name, kind, shape, offset, length in tensors}
    if rows is None:
        return [dict(arrays)]
    return [{name: array[row] for name, array in arrays.items()} for row in range(rows)]


def _array(kind: str, shape: Sequence[int], memory: Memory, offset: int, length: int) -> Array:
    """Return a tensor of a request as a copy."""
    content = bytes(memory[offset : offset + length])
    if kind == "BYTES":
        return deserialize(content, list(shape))
    return np.frombuffer(bytearray(content), dtype_of(kind)).reshape(shape)


class _Known:
    """What texts that come again and again mean; None for a text that means nothing, as a client may have made it."""

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read
        self._known: dict[str, Any] = {}

    def __call__(self, text: str) -> Any:
        try:
            return self._known[text]
        except KeyError:
            pass
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        try:
            found = self._read(text)
        except (ValueError, TypeError, AttributeError, RecursionError):
            found = None
        self._known[text] = found
        return found


def _parsed_parts(text: str) -> list[Part]:
    return [(str(name), _decoder(kind) if kind else None) for name, kind, *_ in json.loads(text)]


def _parsed_types(text: str) -> Headers:
    """Return the types of parts as TorchServe's handlers find them among the headers, under the parts' names."""
    return {str(name): {"content-type": kind or ""} for name, kind, *_ in json.loads(text)}


def _parsed_headers(text: str) -> Headers:
    return {str(name): str(value) for name, value in json.loads(text)}


# -- decoding by content type ------------------------------------------------------------------------------------------
def _decoder(content_type: str) -> Decoder | None:
    """Return what decodes a body of a type; None for one that stays bytes."""
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
        return json.loads(value)  # what only this one reads: NaN, numbers of any length, UTF-16
    except (ValueError, RecursionError):
        return value


def _text(value: bytearray) -> Any:
    try:
        return value.decode()
    except ValueError:
        return value

"""Splits a request's body, and on the older routes its query, into the parts for a handler: named bytes with their types.

The handler's process decodes a part by its type, as an object, a string or bytes. python-multipart parses multipart bodies.

Source: RFC 7578 (multipart/form-data), RFC 2046, section 5.1; the WHATWG's URL standard (application/x-www-form-urlencoded).
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

import orjson
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, MultipartState, parse_options_header

from serving.torchserve.registry.errors import bad_request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_PARTS = 10_000
MAX_HEADERS = 32  # headers of a part
MAX_HEADER = 8 << 10  # bytes
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
logging.getLogger(MultipartParser.__module__).setLevel(logging.ERROR)  # no warnings about mistakes of clients


class Part(NamedTuple):
    """content_type: the media type without parameters, or None for the field of a form, whose bytes are never decoded."""

    name: str
    value: bytes
    content_type: str | None = None
    filename: str | None = None


def media_type(header: str) -> str | None:
    """Return the media type of a Content-Type header, as written and without parameters, or None for an empty header."""
    return header.partition(";")[0].strip() or None


def is_form(header: str) -> bool:
    """Return whether a body of this Content-Type has several parts. Multipart without a boundary is one part."""
    kind = (media_type(header) or "").lower()
    return kind == FORM or (kind == MULTIPART and bool(_boundary(header)))


def form_parts(header: str, body: bytes) -> list[Part]:
    """Return the parts of a form. Raises TorchServeError (400) for a form that cannot be read."""
    if (media_type(header) or "").lower() == FORM:
        fields, _, last = body.rpartition(b"&")
        return urlencoded_parts(
            body if b"=" in last else fields
        )  # as in TorchServe, a last field without "=" does not count
    return _MultipartReader().read(body, _boundary(header))


def urlencoded_parts(text: bytes) -> list[Part]:
    """Return the fields of a query, or of a form in the same encoding."""
    fields = text.split(b"&", MAX_PARTS)
    if len(fields) > MAX_PARTS:
        raise _too_many()
    return [Part(_text(name), _decode(value)) for name, _, value in (field.partition(b"=") for field in fields) if name]


def _decode(field: bytes) -> bytes:
    return unquote_to_bytes(field.replace(b"+", b" "))


def _text(field: bytes) -> str:
    return _decode(field).decode("utf-8", "replace")


# -- multipart ---------------------------------------------------------------------------------------------------------
def _boundary(header: str) -> bytes:
    return parse_options_header(header.encode("latin-1", "replace"))[1].get(b"boundary", b"")


class _MultipartReader:
    """Collects the parts of one complete body in callbacks of the parser."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._headers: dict[bytes, bytes] = {}
        self._header = b""
        self._value = b""

    def read(self, body: bytes, boundary: bytes) -> list[Part]:
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin_part,
            "on_header_field": self._take_header_name,
            "on_header_value": self._take_header_value,
            "on_part_data": self._take_value,
            "on_part_end": self._end_part,
        }
        try:
            parser = MultipartParser(boundary, callbacks, max_header_count=MAX_HEADERS, max_header_size=MAX_HEADER)
            parser.write(body)
        except FormParserError as error:
            raise bad_request(f"the multipart body cannot be read: {error}") from None
        if parser.state != MultipartState.END:
            raise bad_request("the multipart body ends before its closing boundary")
        return self._parts

    def _begin_part(self) -> None:
        if len(self._parts) == MAX_PARTS:
            raise _too_many()
        self._headers, self._value = {}, b""

    def _take_header_name(self, body: bytes, start: int, stop: int) -> None:
        self._header = body[start:stop].lower()

    def _take_header_value(self, body: bytes, start: int, stop: int) -> None:
        self._headers[self._header] = body[start:stop]

    def _take_value(self, body: bytes, start: int, stop: int) -> None:
        self._value = body[start:stop]

    def _end_part(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"")
        parameters = parse_options_header(disposition)[1]
        name = parameters.get(b"name", b"").decode("utf-8", "replace")
        if not name:
            raise bad_request("a part of the multipart body has no name in its Content-Disposition")
        kind = filename = None
        if b"filename" in parameters or b"filename*" in disposition:  # the parser does not return filename*
            filename = parameters.get(b"filename", b"").decode("utf-8", "replace")
            kind = media_type(self._headers.get(b"content-type", b"").decode("utf-8", "replace"))
            kind = kind or "application/octet-stream"
        self._parts.append(Part(name, self._value, kind, filename))


def _too_many() -> Exception:
    return bad_request(f"expected at most {MAX_PARTS} parts in a request")


def described(parts: Sequence[Part], decodes: bool) -> str:
    """Return the parameter `torchserve_parts` for a request's parts. decodes: whether to decode them by type."""
    return orjson.dumps([(one.name, one.content_type if decodes else None, one.filename) for one in parts]).decode()

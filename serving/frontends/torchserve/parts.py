"""A request's body, and its query on the older routes, as the parts that a handler is given: named bytes with their types.

What a part means to the handler (an object, a text, bytes) the handler's process decides, by its type.
Source: RFC 7578 (multipart/form-data), RFC 2046, section 5.1; the WHATWG's URL standard (application/x-www-form-urlencoded).
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import orjson

from serving.torchserve.errors import bad_request

MAX_PARTS = 10_000
MAX_PART_HEADERS = 8 << 10  # bytes
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
_BEHIND_BOUNDARY = (b"\r", b"\n", b"-", b" ", b"\t")
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
# A parameter of a header: a token, or a string in quotes in which a backslash keeps the quote behind it.
_PARAMETER = re.compile(r';\s*([\w*.-]{1,100})\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')


class Part(NamedTuple):
    """content_type: without parameters; None for the field of a form, whose bytes are never decoded."""

    name: str
    value: bytes
    content_type: str | None = None
    filename: str | None = None


def media_type(header: str) -> str | None:
    """Return what a Content-Type header says before its parameters, as it is written; None where it says nothing."""
    return header.partition(";")[0].strip() or None


def is_form(header: str) -> bool:
    """Whether a body of this Content-Type is several parts; multipart without a boundary is one."""
    kind = (media_type(header) or "").lower()
    return kind == FORM or (kind == MULTIPART and bool(_boundary(header)))


def form_parts(header: str, body: bytes) -> list[Part]:
    """Return the parts of a form. TorchServeError (400) for one that cannot be read."""
    if (media_type(header) or "").lower() == FORM:
        fields, _, last = body.rpartition(b"&")
        return urlencoded_parts(
            body if b"=" in last else fields
        )  # a last field that only begins is none, as in TorchServe
    return list(_multipart(body, _boundary(header)))


def urlencoded_parts(text: bytes) -> list[Part]:
    """Return the fields of a query, or of a form that is encoded like one."""
    fields = text.split(b"&", MAX_PARTS)
    if len(fields) > MAX_PARTS:
        raise _too_many()
    return [
        Part(_text(name), _decoded(value)) for name, _, value in (field.partition(b"=") for field in fields) if name
    ]


def _decoded(field: bytes) -> bytes:
    return unquote_to_bytes(field.replace(b"+", b" "))


def _text(field: bytes) -> str:
    return _decoded(field).decode("utf-8", "replace")


# -- multipart ---------------------------------------------------------------------------------------------------------
def _boundary(header: str) -> bytes:
    return _parameters(header).get("boundary", "").encode("latin-1", "replace")


def _parameters(header: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in _PARAMETER.finditer(header):
        name, quoted, token = match.groups()
        found.setdefault(name.lower(), _ESCAPED.sub(r"\1", quoted) if quoted is not None else token)
    return found


def _multipart(body: bytes, boundary: bytes) -> Iterator[Part]:
    delimiter = b"--" + boundary
    stop = 0 if body.startswith(delimiter) else _find(body, delimiter, 0)  # what stands before it is ignored
    if stop < 0:
        raise bad_request("the multipart body has no part between its boundaries, nor a closing boundary")
    for _ in range(MAX_PARTS + 1):
        start = stop + len(delimiter)
        if body.startswith(b"--", start):
            return
        stop = _find(body, delimiter, start)
        if stop < 0:
            raise bad_request("the multipart body ends before its closing boundary")
        end = stop - 1  # of the part, before the end of its last line
        yield _read_part(body, start, end - (body[end - 1 : end] == b"\r"))
    raise _too_many()


def _find(body: bytes, delimiter: bytes, start: int) -> int:
    """Return where the next line begins that is a boundary and no longer than that, -1 without one."""
    while (found := body.find(b"\n" + delimiter, start)) >= 0:
        start = found + 1 + len(delimiter)
        if body[start : start + 1] in _BEHIND_BOUNDARY:
            return found + 1
    return -1


def _read_part(body: bytes, start: int, stop: int) -> Part:
    """Return the part in body[start:stop], which begins behind a boundary."""
    blank = _BLANK_LINE.search(body, start, min(stop, start + MAX_PART_HEADERS))
    if blank is None:
        raise bad_request("a part of the multipart body has no empty line behind its headers, or too many headers")
    headers = _part_headers(body[start : blank.start()])
    parameters = _parameters(headers.get("content-disposition", ""))
    name = parameters.get("name")
    if not name:
        raise bad_request("a part of the multipart body has no name in its Content-Disposition")
    value = body[blank.end() : stop]
    filename = parameters.get("filename", parameters.get("filename*"))
    if filename is None:
        return Part(name, value)
    return Part(name, value, media_type(headers.get("content-type", "")) or "application/octet-stream", filename)


def _part_headers(text: bytes) -> dict[str, str]:
    """Return the headers by their names in lower case."""
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _too_many() -> Exception:
    return bad_request(f"expected at most {MAX_PARTS} parts in a request")


def described(parts: Sequence[Part], decodes: bool) -> str:
    """Return what a request's parameter `torchserve_parts` says of its parts. decodes: handlers get what their types say."""
    return orjson.dumps([(one.name, one.content_type if decodes else None, one.filename) for one in parts]).decode()

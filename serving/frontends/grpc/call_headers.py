"""Parses the request headers of a call, and creates the frames of response headers and trailers.

Source: gRPC's PROTOCOL-HTTP2.
"""

import functools
import re
from dataclasses import dataclass, field
from urllib.parse import quote_from_bytes

from serving.frontends.grpc.status import Status
from serving.frontends.http2.frames import HeaderFrame, header_frame
from serving.frontends.http2.header_decompression import HeaderList
from serving.frontends.http2.headers import encode_headers
from serving.frontends.shared.bounded_cache import BoundedCache
from serving.resources.request_memory import COUNTED_FROM

ENCODINGS = ("identity", "deflate", "gzip")
MAX_STATUS_MESSAGE = 6000  # bytes; clients accept 8 KiB of headers
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
# The characters of grpc-message that are not percent-encoded.
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_PSEUDO_FIELDS = frozenset((b":method", b":scheme", b":path", b":authority"))
_FORBIDDEN_FIELDS = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_READ_HEADERS = frozenset(("te", "content-type", "grpc-encoding"))  # headers whose values decide how to handle the call
_HEADER_SIZE = 128  # bytes of memory that a header takes in addition to its text
_KEPT_NAMES = 256
_KEPT_NAME_SIZE = 64  # bytes
_NAMES: BoundedCache[bytes, str] = BoundedCache(_KEPT_NAMES)  # decoded names of allowed fields, without pseudo-fields


@dataclass
class CallHead:
    """The request headers of a call. They are never changed.

    headers: lower-case name -> value; the values of a repeated name are joined by commas.
    timeout_s: the value of grpc-timeout, in seconds. encoding: the value of grpc-encoding.
    malformed: whether this is not a valid HTTP/2 request. http_status: 200, or the status for a request that is not gRPC.
    size: bytes of memory that the headers take. usual: whether the headers are valid and small, and have no deadline.
    """

    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    encoding: str = "identity"
    malformed: bool = False
    http_status: int = 200
    error: str = ""  # the message of an INVALID_ARGUMENT that a header causes
    size: int = 0
    usual: bool = False


def parse_head(fields: HeaderList) -> CallHead:
    """Return the head of a call. It is marked as malformed if the header list violates RFC 9113, sections 8.2 and 8.3."""
    pseudo: dict[bytes, bytes] = {}
    headers: dict[str, str] = {}
    repeated: dict[str, list[str]] = {}
    known = _NAMES.get
    for name, value in fields:
        key = known(name)
        if key is None:
            if name[:1] == b":":
                if headers or name in pseudo or name not in _PSEUDO_FIELDS:
                    return CallHead(malformed=True)
                pseudo[name] = value
                continue
            if not name or name != name.lower() or name in _FORBIDDEN_FIELDS:
                return CallHead(malformed=True)
            key = name.decode("latin-1")
            if len(name) <= _KEPT_NAME_SIZE:
                _NAMES.remember(name, key)
        if key in headers:
            repeated.setdefault(key, [headers[key]]).append(value.decode("latin-1"))
        else:
            headers[key] = value.decode("latin-1")
    for key, values in repeated.items():
        headers[key] = ",".join(values)
    if not (pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")):
        return CallHead(malformed=True)
    if headers.get("te", "trailers") != "trailers":
        return CallHead(malformed=True)
    return _call_head(pseudo, headers)


class HeadParser:
    """Parses the heads of one connection. Heads that differ from the previous head only in some values are parsed faster."""

    __slots__ = ("_fields", "_head")

    def __init__(self) -> None:
        self._fields: HeaderList = []  # the fields of the last head that was valid and repeated no name
        self._head = CallHead()

    def parse(self, fields: HeaderList) -> CallHead:
        changed = self._changed(fields)
        if changed is not None:
            head = _with_deadline(self._head.path, self._head.headers | changed, self._head.encoding)
        else:
            head = parse_head(fields)
            names = len(head.headers) + sum(name[:1] == b":" for name, _ in fields)
            if head.malformed or head.http_status != 200 or names < len(fields):
                return head
        if not head.error:
            self._fields, self._head = fields, head
        return head

    def _changed(self, fields: HeaderList) -> dict[str, str] | None:
        """Return the headers whose values differ from the previous head. Return None if a name, or a header in _READ_HEADERS,
        differs."""
        if len(fields) != len(self._fields):
            return None
        changed = {}
        for field_, before in zip(fields, self._fields, strict=True):
            if field_ is before or field_ == before:
                continue
            name, value = field_
            key = _NAMES.get(name)
            if name != before[0] or key is None or key in _READ_HEADERS:
                return None
            changed[key] = value.decode("latin-1")
        return changed


def _call_head(pseudo: dict[bytes, bytes], headers: dict[str, str]) -> CallHead:
    if pseudo[b":method"] != b"POST":
        return CallHead(http_status=405)
    if not headers.get("content-type", "").startswith("application/grpc"):
        return CallHead(http_status=415)
    return _with_deadline(pseudo[b":path"].decode("latin-1"), headers, headers.get("grpc-encoding", "identity"))


def _with_deadline(path: str, headers: dict[str, str], encoding: str) -> CallHead:
    """Return the head of a call. All headers except grpc-timeout are already checked."""
    size = len(path) + _HEADER_SIZE * len(headers)
    for name, value in headers.items():
        size += len(name) + len(value)
    timeout = headers.get("grpc-timeout")
    if timeout is None:
        usual = encoding in ENCODINGS and size <= COUNTED_FROM
        return CallHead(path, headers, encoding=encoding, size=size, usual=usual)
    match = _TIMEOUT.fullmatch(timeout)
    if match is None:
        return CallHead(
            path, headers, error=f"grpc-timeout is '{timeout[:40]}'; expected digits and one of H M S m u n"
        )
    return CallHead(path, headers, int(match[1]) * _UNIT_S[match[2]], encoding, size=size)


def request_fields(head: CallHead, timeout_s: float | None = None) -> HeaderList:
    """Return the header fields of a head, to forward the call. timeout_s: what remains of the call's timeout, if it has one."""
    pseudo = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", head.path.encode("latin-1"))]
    headers = head.headers
    if timeout_s is not None:
        headers = headers | {"grpc-timeout": f"{max(0, int(timeout_s * 1000))}m"}
    return pseudo + [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


@functools.cache
def response_headers(encoding: str = "") -> HeaderFrame:
    """Return the response headers of a call. encoding: the encoding of compressed messages; "" for none."""
    fields = [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-accept-encoding", ",".join(ENCODINGS).encode()),
    ]
    if encoding:
        fields.append((b"grpc-encoding", encoding.encode()))
    return header_frame(encode_headers(fields))


RESPONSE_HEADERS = response_headers()
OK_TRAILERS = header_frame(encode_headers([(b"grpc-status", b"0")]), ends=True)


def _status_fields(status: Status, message: str) -> list[tuple[bytes, bytes]]:
    """Return grpc-status and grpc-message. The message is percent-encoded, and truncated to the length that clients accept."""
    raw = message.encode("utf-8", "replace")
    value = quote_from_bytes(raw, _PLAIN).encode()
    while len(value) > MAX_STATUS_MESSAGE:
        raw = raw[: len(raw) * MAX_STATUS_MESSAGE // len(value) - 1]
        value = quote_from_bytes(raw, _PLAIN).encode()
    return [(b"grpc-status", str(int(status)).encode()), (b"grpc-message", value)]


@functools.lru_cache(256)
def status_trailers(status: Status, message: str) -> HeaderFrame:
    """Return the trailers of a call that fails after its response headers are sent."""
    return header_frame(encode_headers(_status_fields(status, message)), ends=True)


@functools.lru_cache(256)
def error_response(status: Status, message: str) -> HeaderFrame:
    """Return the headers of a call that fails before anything is sent ("Trailers-Only")."""
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    if status is Status.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", ",".join(ENCODINGS).encode()))
    return header_frame(encode_headers(fields + _status_fields(status, message)), ends=True)


@functools.cache
def http_error(http_status: int) -> HeaderFrame:
    """Return the response headers for a request that is not a gRPC call."""
    return header_frame(encode_headers([(b":status", str(http_status).encode())]), ends=True)

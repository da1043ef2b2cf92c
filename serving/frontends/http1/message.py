"""HTTP/1.1 request heads and replies, independent of a connection. connection.py limits the size of a head.

parse_head(bytes) -> Head           parses the bytes up to the empty line with httptools (llhttp, strict)
Reply                               status, body and headers of an answer; `encode` returns the bytes
error_reply(exception) -> Reply     the error as JSON; STATUS maps neutral codes to HTTP statuses
HttpError                           an error of HTTP itself (404 for an unknown route, 405, 408, 411, 413, 415, 431)

Source: RFC 9112 (HTTP/1.1) and RFC 9110 (HTTP semantics).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote

import httptools
import orjson

from serving.core.errors import Code, NotYet, Outdated, PermissionDenied, QuotaReached, ServingError, Unauthenticated

MAX_HEADERS = 100
ENCODINGS = ("gzip", "deflate")
# Headers that apply to one connection, not to the request. Source: RFC 9110, section 7.6.1.
HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)
_WEIGHT = re.compile(r"q\s*=\s*([01](?:\.[0-9]{0,3})?)")

STATUS = {
    Code.INTERNAL: 500,
    Code.NOT_FOUND: 404,
    Code.UNAVAILABLE: 503,
    Code.UNSUPPORTED: 501,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 400,
    Code.INVALID_ARG: 400,
    Code.ALREADY_EXISTS: 400,
}

REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}
_STATUS_LINES = {status: f"HTTP/1.1 {status} {reason}\r\n" for status, reason in REASONS.items()}

Chunk = bytes | memoryview


class HttpError(Exception):
    """An error with an HTTP status and headers."""

    def __init__(self, status: int, message: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers


class BodyTooLarge(HttpError):
    """The body is larger than its route allows: 400, as in Triton."""

    def __init__(self, limit: int, advice: str = "") -> None:
        super().__init__(400, f"the request body exceeds the maximum allowed value of {limit} bytes{advice}")
        self.limit = limit


class Head:
    """A parsed request head. headers: lower-case name -> value; the values of a repeated name are joined by ", ".

    names: lower-case name -> the name as the client wrote it, if that is different. content_length: -1 for a chunked body.
    header_length: the value of Inference-Header-Content-Length. encoding: the Content-Encoding of the body. accept: "gzip" or
    "deflate" if the client accepts compressed answers, else "". query: the text after the "?" of the path, not decoded.
    """

    __slots__ = (
        "accept",
        "content_length",
        "encoding",
        "expects_continue",
        "header_length",
        "headers",
        "http_1_0",
        "keep_alive",
        "method",
        "names",
        "path",
        "query",
    )

    def __init__(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        names: dict[str, str],
        keep_alive: bool,
        http_1_0: bool,
        query: str = "",
    ) -> None:
        """Raises HttpError for a malformed length or an unknown transfer encoding."""
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.names = names
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.content_length = _content_length(headers)
        self.header_length = _header_length(headers)
        self.expects_continue = headers.get("expect", "").lower() == "100-continue"
        self.encoding = headers.get("content-encoding", "").strip().lower()
        self.accept = _accepted_encoding(headers.get("accept-encoding", ""))

    def with_headers(self, headers: dict[str, str], other_lengths: bool) -> "Head":
        """Return this head with other headers. other_lengths: whether the two lengths may differ, too."""
        other = Head.__new__(Head)
        other.method = self.method
        other.path = self.path
        other.query = self.query
        other.headers = headers
        other.names = self.names
        other.keep_alive = self.keep_alive
        other.http_1_0 = self.http_1_0
        other.content_length = _content_length(headers) if other_lengths else self.content_length
        other.header_length = _header_length(headers) if other_lengths else self.header_length
        other.expects_continue = self.expects_continue
        other.encoding = self.encoding
        other.accept = self.accept
        return other

    def as_sent(self) -> Iterator[tuple[str, str]]:
        """Yield the headers, with the names as the client wrote them."""
        for name, value in self.headers.items():
            yield self.names.get(name, name), value


class _Collector:
    """httptools' callbacks for one head."""

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self.count = 0
        self.complete = False
        self.keep_alive = False
        self.parser: httptools.HttpRequestParser | None = None

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count += 1
        if self.count > MAX_HEADERS:  # the request will be refused
            return
        written = name.decode("latin-1")
        key = written.lower()
        if key != written:
            self.names[key] = written
        text = value.decode("latin-1")
        known = self.headers.get(key)
        self.headers[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self.complete = True
        self.keep_alive = self.parser.should_keep_alive()  # llhttp forgets it when a message without a body ends


def parse_head(data: bytes) -> Head:
    """Parse a head that ends with its empty line. Raises HttpError if it is malformed; the connection must then be closed."""
    collector = _Collector()
    parser = collector.parser = httptools.HttpRequestParser(collector)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # upgrades are not supported: the request is answered as HTTP/1.1
    except httptools.HttpParserError:
        raise HttpError(400, "the request is not valid HTTP/1.1") from None
    if not collector.complete:
        raise HttpError(400, "the request is not valid HTTP/1.1")
    if collector.count > MAX_HEADERS:
        raise HttpError(431, f"expected at most {MAX_HEADERS} headers, got {collector.count}")
    path, query = _target(collector.url)
    return Head(
        parser.get_method().decode("latin-1"),
        path,
        collector.headers,
        collector.names,
        collector.keep_alive,
        parser.get_http_version() == "1.0",
        query,
    )


def _target(url: bytes) -> tuple[str, str]:
    """Return the decoded path, and the query, not decoded."""
    if url == b"*":
        return "*", ""
    try:
        parsed = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is None or parsed.path is None:
        raise HttpError(400, "the request target is not a valid path")
    return unquote(parsed.path.decode("latin-1").rstrip("/") or "/"), (parsed.query or b"").decode("latin-1")


def _content_length(headers: dict[str, str]) -> int:
    encoding = headers.get("transfer-encoding")
    if encoding is not None:
        if encoding.lower() != "chunked":
            raise HttpError(501, f"expected transfer encoding 'chunked', got '{encoding[:40]}'")
        return -1
    return int(headers.get("content-length", "0"))  # llhttp has checked that it is one decimal number


def _header_length(headers: dict[str, str]) -> int | None:
    text = headers.get("inference-header-content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpError(400, f"expected a number of bytes in Inference-Header-Content-Length, got '{text[:40]}'")
    return int(text)


def _accepted_encoding(header: str) -> str:
    """Return the encoding in ENCODINGS that an Accept-Encoding header prefers, the first of several with the same weight; "" if
    it prefers identity or names none. Source: RFC 9110, section 12.5.3."""
    best, best_weight = "", 0.0
    for item in header.lower().split(","):
        name, _, parameters = item.partition(";")
        weight = _weight(parameters)
        if name.strip() in (*ENCODINGS, "identity") and weight > best_weight:
            best, best_weight = name.strip(), weight
    return best if best in ENCODINGS else ""


def _weight(parameters: str) -> float:
    """Return the weight of an encoding: 0.5 for "q=0.5", 1 if there are no parameters, 0 if they are malformed."""
    if not parameters:
        return 1.0
    match = _WEIGHT.fullmatch(parameters.strip())
    return float(match[1]) if match else 0.0


@dataclass(slots=True)
class Reply:
    """An answer of known length. body: chunks, which are written in order; large chunks are not joined.

    closes: whether to close the connection after this answer and the answers to all requests received so far.
    """

    status: int = 200
    body: Sequence[Chunk] = ()
    content_type: str = ""
    headers: Iterable[tuple[str, str]] = ()
    closes: bool = False

    def encode(self, head: Head, closing: bool, standing: str = "") -> list[Chunk]:
        """Return the status line, headers and body. The answer to HEAD has no body. An answer with 204 has no Content-Length.

        standing: the header lines that all answers of the listener have."""
        lines = [status_line(self.status)]
        if self.content_type:
            lines.append(f"Content-Type: {self.content_type}\r\n")
        if standing:
            lines.append(standing)
        lines.extend(f"{name}: {value}\r\n" for name, value in self.headers)
        if self.status != 204:
            lines.append(f"Content-Length: {sum(len(chunk) for chunk in self.body)}\r\n")
        lines.append(connection_header(head, closing))
        lines.append("\r\n")
        start = "".join(lines).encode("latin-1", "replace")
        return [start] if head.method == "HEAD" else [start, *self.body]


def status_line(status: int) -> str:
    return _STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"


def connection_header(head: Head, closing: bool) -> str:
    if closing or not head.keep_alive:
        return "Connection: close\r\n"
    return "Connection: keep-alive\r\n" if head.http_1_0 else ""


def json_reply(value: object, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Reply:
    return Reply(status, (orjson.dumps(value),), "application/json", headers)


def plain_error(error: Exception, status: int, message: str) -> object:
    return {"error": message}


def error_reply(error: Exception, body: Callable[[Exception, int, str], object] = plain_error) -> Reply:
    """Return the answer for an exception. An unexpected exception becomes 500 without its text.

    body: returns the JSON body for an exception, status and message."""
    status, message, headers = _described(error)
    return json_reply(body(error, status, encodable(message)), status, headers)


ErrorReply = Callable[[Exception], Reply]


def encodable(text: str) -> str:
    """Return a message that UTF-8 can encode. The original may quote a lone surrogate of the client."""
    return text.encode("utf-8", "replace").decode()


def _described(error: Exception) -> tuple[int, str, Sequence[tuple[str, str]]]:
    if isinstance(error, HttpError):
        return error.status, error.message, error.headers
    if isinstance(error, Unauthenticated):
        return 401, error.message, (("WWW-Authenticate", "Bearer"),)
    if isinstance(error, PermissionDenied):
        return 403, error.message, ()
    if isinstance(error, Outdated):
        return 409, error.message, ()
    if isinstance(error, NotYet):
        return 503, error.message, (("Retry-After", str(NotYet.RETRY_AFTER_S)),)
    if isinstance(error, QuotaReached):
        return 429, error.message, (("Retry-After", str(error.retry_after_s)),)
    if isinstance(error, ServingError):
        return STATUS[error.code], error.message, ()
    return 500, "the server failed to answer this request", ()


UNKNOWN_HEAD = Head("GET", "*", {}, {}, False, False)

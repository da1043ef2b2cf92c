"""The load generator's side of HTTP/1.1: keep-alive connections with one request under way."""

import contextlib
import json
import re
from collections.abc import Sequence

from dashboard.loads.connection import Connection, Target
from dashboard.loads.requests import Request, http_request

_REMEMBERED_HEADS = 64
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked", re.IGNORECASE)
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_REASON_CHARACTERS = 200


class HttpConnection(Connection):
    """A connection that speaks HTTP/1.1. kept_bytes: of the body of an answer, for the reason of a failure."""

    kept_bytes = 4096

    def __init__(self, target: Target, requests: Sequence[Request]) -> None:
        self._requests = [http_request("POST", one.path, one.body, one.headers, target.address) for one in requests]
        self._heads: dict[bytes, int | None] = {}  # head -> the length of its body, None if it is chunked
        super().__init__(target)
        self._reset()

    def _reset(self) -> None:
        self._unread = b""  # the head, the first bytes of the body, and the whole of a chunked body
        self._missing = -1  # bytes of the body; -1 before the head is complete

    def send(self, number: int) -> None:
        self.write(self._requests[number % len(self._requests)])

    def feed(self, data: bytes) -> str | None:
        if self._missing < 0:
            self._unread = data = self._unread + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                return None
            length = self._body_length(data[:end])
            if length is None:  # chunked
                return self._end() if data.endswith(_LAST_CHUNK) else None
            self._missing = end + 4 + length
        elif len(self._unread) < self.kept_bytes:
            self._unread += data
        self._missing -= len(data)
        return self._end() if self._missing <= 0 else None

    def _body_length(self, head: bytes) -> int | None:
        if head not in self._heads:
            found = _LENGTH.search(head)
            if found is None and not _CHUNKED.search(head):
                raise ValueError("the server's answer has neither a Content-Length nor chunks")
            if len(self._heads) >= _REMEMBERED_HEADS:
                self._heads.clear()
            self._heads[head] = int(found[1]) if found else None
        return self._heads[head]

    def _end(self) -> str:
        reason = "" if self._unread.startswith(b"HTTP/1.1 200") else _reason(self._unread)
        self._reset()
        return reason


def _reason(answer: bytes) -> str:
    """Return the status of a failed answer and the server's sentence, or else its body, in short."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")[2]
    text = " ".join(_sentence(body).split())
    return f"{status}: {text}"[:_REASON_CHARACTERS]


def _sentence(body: bytes) -> str:
    """Return the text of {"error": ...}, or else the whole body."""
    text = body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        answer = json.loads(text)
        if isinstance(answer, dict) and isinstance(answer.get("error"), str):
            return str(answer["error"])
    return text

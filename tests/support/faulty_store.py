"""A proxy before an ObjectStore that makes the faults of real stores, and counts the bytes of objects that it hands out.

It can hold a write back, as a network does, until the test lets it through.
"""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import httpx

from tests.support.serving_process import PATIENCE_S

_ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>{}</Message></Error>'
_EMPTY = (
    '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>'
    "<KeyCount>0</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)


class FaultyStore:
    """`with FaultyStore(store.endpoint) as proxy:`. `fault` is one of FAULTS; "" passes everything on."""

    FAULTS = ("", "slow", "hanging", "forbidden list", "empty list", "stale list", "truncated body", "busy")

    def __init__(self, endpoint: str) -> None:
        self.fault = ""
        self.fetched = 0  # bytes of objects
        self.requests = 0
        self.no_conditions = False  # whether the store ignores If-Match and If-None-Match
        self.held_back = ""  # a part of the path of the next write that waits for `let_through`
        self.holds, self.let_through = threading.Event(), threading.Event()
        self.late_status = 0  # what the store says to that write
        self.after_chunk: Callable[[], None] = lambda: None  # called after each answer with content of an object
        self._lists: dict[str, bytes] = {}
        self._released = threading.Event()
        self._client = httpx.Client(base_url=endpoint, timeout=PATIENCE_S)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._answer(self)

            do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None: ...

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "FaultyStore":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self.let_through.set()
        self._server.shutdown()
        self._server.server_close()
        self._client.close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        self.requests += 1
        fault, lists = self.fault, "list-type" in urlsplit(handler.path).query
        if fault == "hanging":
            self._released.wait(PATIENCE_S)
            handler.close_connection = True
            return
        if fault == "busy" or (lists and fault == "forbidden list"):
            status, code = (503, "SlowDown") if fault == "busy" else (403, "AccessDenied")
            _send(handler, status, {}, _ERROR.format(code, "no").encode())
            return
        left_out = ("connection", "expect", *(("if-match", "if-none-match") if self.no_conditions else ()))
        passed = {name: value for name, value in handler.headers.items() if name.lower() not in left_out}
        sent = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        late = handler.command == "PUT" and self.held_back != "" and self.held_back in handler.path
        if late:
            self.held_back = ""
            self.holds.set()
            self.let_through.wait(PATIENCE_S)
        answer = self._client.request(handler.command, handler.path, headers=passed, content=sent)
        if late:
            self.late_status = answer.status_code
        content = answer.content
        if lists and fault == "empty list":
            content = _EMPTY.encode()
        elif lists and fault == "stale list":
            content = self._lists.get(handler.path, content)
        elif lists:
            self._lists[handler.path] = content
        kept = ("etag", "last-modified", "content-range", "content-type", "accept-ranges", "location")
        headers = {name: value for name, value in answer.headers.items() if name in kept}
        if handler.command == "HEAD":
            headers["Content-Length"] = answer.headers["content-length"]
        reads = handler.command == "GET" and not lists
        if reads:
            self.fetched += len(content)
        _send(handler, answer.status_code, headers, content, fault if reads else "")
        if reads:
            self.after_chunk()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that were killed."""


def _send(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes, fault: str = ""
) -> None:
    handler.send_response(status)
    for name, value in ({"Content-Length": str(len(content))} | headers).items():
        handler.send_header(name, value)
    handler.end_headers()
    if fault == "truncated body":
        content, handler.close_connection = content[: len(content) // 2], True
    pieces = 10 if fault == "slow" else 1
    for begin in range(0, len(content), max(1, -(-len(content) // pieces))):
        handler.wfile.write(content[begin : begin + -(-len(content) // pieces)])
        threading.Event().wait(0.02 if fault == "slow" else 0)

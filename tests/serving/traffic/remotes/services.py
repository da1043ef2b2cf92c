"""A tiny real HTTP server of a test's own, in a thread: JSON over HTTP as a FastAPI application answers it."""

import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.support.certificates import Files


class Received(NamedTuple):
    """A request. Names of headers are lower-case. client: the port that it came from."""

    path: str
    headers: dict[str, str]
    body: bytes
    client: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


# What a handler gives: JSON for 200, or (status, headers, body).
Answering = Callable[[Received], Any]


class Service:
    def __init__(self, scheme: str, port: int) -> None:
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.received: list[Received] = []


@contextlib.contextmanager
def service(respond: Answering, tls: Files | None = None) -> Iterator[Service]:
    """Answer while the block lasts; `received` has every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            one = Received(self.path, headers, body, self.client_address[1])
            served.received.append(one)
            answer = respond(one)
            status, more, content = answer if isinstance(answer, tuple) else (200, {}, json.dumps(answer).encode())
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", "Content-Length": len(content), **more}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.cert, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    served = Service("http" if tls is None else "https", server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A web server of files, with ranges, that breaks off, redirects or sends too much when a test says so."""

import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from tests.support.certificates import Files


@dataclass
class WebFile:
    """A file. breaks_after: byte counts at which the next answers break off. extra: bytes after the announced ones."""

    content: bytes = b""
    etag: str = '"1"'
    ranges: bool = True
    breaks_after: list[int] = field(default_factory=list)
    redirect: str = ""
    status: int = 200
    tells_length: bool = True
    extra: int = 0
    retry_after: str = ""
    holds_at: int = 0  # after so many bytes the server waits for `released`
    released: threading.Event = field(default_factory=threading.Event)


@dataclass
class FileServer:
    """The files by their paths, and the requests that came: (path, headers). A PUT gets its body back, with puts_status."""

    port: int
    scheme: str = "http"
    files: dict[str, WebFile] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    puts: list[tuple[str, bytes]] = field(default_factory=list)
    puts_status: int = 200

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def starts(self) -> list[str]:
        """Return the ranges that were asked for, "" for a whole file."""
        return [headers.get("Range", "") for _, headers in self.requests]


@contextmanager
def file_server(certificate: Files | None = None) -> Iterator[FileServer]:
    """A server of HTTP, or of HTTPS with a certificate."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            served.requests.append((self.path, dict(self.headers)))
            found = served.files.get(self.path) or served.files.get(urlsplit(self.path).path)
            if found is None:
                self.send_error(404)
            elif found.redirect:
                self.send_response(302)
                self.send_header("Location", found.redirect)
                self.end_headers()
            else:
                self.answer(found)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            served.puts.append((self.path, body))
            self.send_response(served.puts_status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def answer(self, found: WebFile) -> None:
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            same = self.headers.get("If-Range", found.etag) == found.etag
            start = int(asked[1]) if asked and found.ranges and same else 0
            body = found.content[start:]
            self.send_response(206 if start else found.status)
            if found.etag:
                self.send_header("ETag", found.etag)
            if found.tells_length:
                self.send_header("Content-Length", str(len(body)))
            if found.retry_after:
                self.send_header("Retry-After", found.retry_after)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(found.content) - 1}/{len(found.content)}")
            self.end_headers()
            if found.holds_at and not found.released.is_set():
                self.wfile.write(body[: found.holds_at])
                found.released.wait()
                body = body[found.holds_at :]
            end = found.breaks_after.pop(0) if found.breaks_after else len(body)
            self.wfile.write(body[:end] + bytes(found.extra if end == len(body) else 0))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served = FileServer(server.server_address[1], "http" if certificate is None else "https")
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate.cert, certificate.key)
        # Each connection shakes hands on its own thread: one that breaks off does not hold up the others.
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

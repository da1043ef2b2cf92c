"""An HTTP/1.1 client over a bare socket, for bytes that a well-behaved client cannot send."""

import json
import socket
import urllib.request
from typing import Any, NamedTuple

from tests.support.serving_process import PATIENCE_S, ServerProcess


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class RawClient:
    def __init__(self, address: str, timeout_s: float = PATIENCE_S, receive_buffer: int = 0, source: str = "") -> None:
        """receive_buffer: bytes that the kernel takes for a client that does not read; 0 for its own choice. source: the
        address that the server sees."""
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.socket.bind((source, 0))
        self.socket.connect((host, int(port)))
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, without_body: bool = False) -> Answer:
        """The next answer; ConnectionError where the server closed instead."""
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        headers = {}
        while (header := self.file.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding") == "chunked":
            return Answer(int(line.split()[1]), headers, self._chunks())
        length = 0 if without_body else int(headers.get("content-length", 0))
        return Answer(int(line.split()[1]), headers, self.file.read(length))

    def _chunks(self) -> bytes:
        body = b""
        while chunk := self.chunk():
            body += chunk
        return body

    def chunk(self) -> bytes:
        """One chunk of a chunked answer; empty for the last."""
        chunk = self.file.read(int(self.file.readline(), 16))
        assert self.file.readline() == b"\r\n"
        return chunk

    def closed(self) -> bool:
        """Wait for the server to close; False where it sends something instead."""
        try:
            return self.file.read(1) == b""
        except ConnectionError:
            return True

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        self.send(build(method, path, body, **headers))
        return self.answer(without_body=method == "HEAD")


def build(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request as bytes; header names are given with underscores."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def tensor(values: list[Any], shape: list[int] | None = None, datatype: str = "FP32", name: str = "INPUT0") -> Any:
    return {"name": name, "datatype": datatype, "shape": shape or [1, len(values)], "data": values}


def infer_body(*inputs: Any, **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def samples(server: ServerProcess) -> dict[str, float]:
    """Every line of /metrics: name with labels -> value."""
    with urllib.request.urlopen(server.metrics_url, timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

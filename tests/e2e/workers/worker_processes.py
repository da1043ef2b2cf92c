"""The frontend workers of a running server, from outside: which they are, and which of them has a client's connection."""

import contextlib
import json
import socket

import numpy as np
import psutil

from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until


def worker_pids(server: ServerProcess) -> set[int]:
    """The process ids of the workers that run."""
    return set(server.pids) - {server.pid}


def connect(server: ServerProcess) -> socket.socket:
    host, _, port = server.http.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def owner(server: ServerProcess, client: socket.socket) -> int:
    """The worker that has accepted this connection."""

    def found() -> int | None:
        mine = client.getsockname()
        for pid in worker_pids(server):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                for one in psutil.Process(pid).net_connections("tcp"):
                    if one.raddr and tuple(one.raddr) == mine:
                        return pid
        return None

    return int(wait_until(found, what="a worker's accepting the connection"))


def one_each(server: ServerProcess) -> dict[int, socket.socket]:
    """A connection to each worker."""
    found: dict[int, socket.socket] = {}
    wanted = worker_pids(server)
    while set(found) != wanted:
        client = connect(server)
        found.setdefault(owner(server, client), client)
        if client not in found.values():
            client.close()
    return found


def infer_request(model: str, request_id: str = "", value: float = 1.0, shape: tuple[int, ...] = (1, 1)) -> bytes:
    """An infer request of FP32 as bytes of HTTP."""
    tensor = {"name": "INPUT0", "shape": shape, "datatype": "FP32", "data": np.full(shape, value).ravel().tolist()}
    body = json.dumps({"id": request_id, "inputs": [tensor]}).encode()
    return (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


class Answers:
    """The answers that come on a connection."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._data = b""

    def next(self) -> tuple[int, bytes]:
        """The status and the body of the next one; a ConnectionError where the connection ends before."""
        while b"\r\n\r\n" not in self._data:
            self._receive()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
        while len(self._data) < length:
            self._receive()
        body, self._data = self._data[:length], self._data[length:]
        return int(head.split()[1]), body

    def _receive(self) -> None:
        data = self._client.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the connection was closed")
        self._data += data

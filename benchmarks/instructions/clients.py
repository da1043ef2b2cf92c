"""Blocking clients that send the same request again and again, with a fixed number of concurrent requests."""

import json
import socket
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np

from benchmarks.instructions.models import INPUTS
from dashboard.loads.http2_client import DATA, END_HEADERS, END_STREAM, HEADERS, Http2Client, frame, length_prefixed
from dashboard.loads.requests import http_request, infer_message

TIMEOUT_S = 120.0
TOKEN = "counted-token"  # of requests with a token
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
RECEIVED = 1 << 16  # the most bytes that one read receives
DATATYPES = {"int32": "INT32", "float32": "FP32"}


class Client(Protocol):
    def ask(self) -> None:
        """Send `at_once` requests, and wait for their answers. Raise RuntimeError if one fails."""

    def close(self) -> None: ...


class HttpClient:
    """A client with one connection for each concurrent request."""

    def __init__(self, address: str, request: bytes, at_once: int) -> None:
        self._request = request
        self._connections = [_connect(address) for _ in range(at_once)]

    def ask(self) -> None:
        for connection in self._connections:
            connection.sendall(self._request)
        for connection in self._connections:
            _receive_answer(connection)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class GrpcClient(Http2Client):
    """A client with one connection, and one stream for each concurrent call."""

    def __init__(self, address: str, message: bytes, at_once: int) -> None:
        self._connection = _connect(address)
        self._body = length_prefixed(message)
        self._at_once = at_once
        self._block = b""
        self._open = 0
        self.start_http2()

    def write(self, data: bytes) -> None:
        self._connection.sendall(data)

    def ask(self) -> None:
        self._open = self._at_once
        self.write(b"".join([self._call() for _ in range(self._at_once)]))
        while self._open:
            received = self._connection.recv(RECEIVED)
            if not received:
                raise RuntimeError("the server closed the connection")
            self.data_received(received)

    def close(self) -> None:
        self._connection.close()

    def _call(self) -> bytes:
        self.stream_id += 2
        if self.stream_id <= 3:  # the second block refers to the fields that the first put into the dynamic table
            self._block = self.header_block("ModelInfer")
        return frame(HEADERS, END_HEADERS, self.stream_id, self._block) + frame(
            DATA, END_STREAM, self.stream_id, self._body
        )

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS and flags & END_STREAM:
            if not payload.endswith(b"\x010"):  # grpc-status: 0, a literal of one byte
                raise RuntimeError(f"a call failed: {payload!r}")
            self._open -= 1


def json_client(address: str, model: str, at_once: int) -> Client:
    tensors = [
        {"name": name, "datatype": DATATYPES[str(array.dtype)], "shape": [1, len(array)], "data": array.tolist()}
        for name, array in INPUTS[model].items()
    ]
    return HttpClient(address, _infer_request(model, json.dumps({"inputs": tensors}).encode(), {}), at_once)


def token_client(address: str, model: str, at_once: int) -> Client:
    """Return a client as of `binary_client`, whose requests have a token."""
    return binary_client(address, model, at_once, {"Authorization": f"Bearer {TOKEN}"})


def binary_client(address: str, model: str, at_once: int, headers: Mapping[str, str] = NO_HEADERS) -> Client:
    tensors = [
        {
            "name": name,
            "datatype": DATATYPES[str(array.dtype)],
            "shape": [1, len(array)],
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in INPUTS[model].items()
    ]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(array.tobytes() for array in INPUTS[model].values())
    given = {"Inference-Header-Content-Length": str(len(head)), **headers}
    return HttpClient(address, _infer_request(model, body, given), at_once)


def prediction_client(address: str, model: str, at_once: int) -> Client:
    body = json.dumps({name: array.tolist() for name, array in INPUTS[model].items()}).encode()
    return HttpClient(
        address, http_request("POST", f"/predictions/{model}", body, {"Content-Type": "application/json"}), at_once
    )


def grpc_client(address: str, model: str, at_once: int) -> Client:
    batches = {name: array[np.newaxis] for name, array in INPUTS[model].items()}
    return GrpcClient(address, infer_message(model, batches), at_once)


LISTENERS = {"grpc": "grpc", "prediction": "torchserve_inference"}  # protocol -> listener, if that is not "http"
CLIENTS: dict[str, Callable[[str, str, int], Client]] = {
    "json": json_client,
    "binary": binary_client,
    "binary with a token": token_client,
    "grpc": grpc_client,
    "prediction": prediction_client,
}


def _infer_request(model: str, body: bytes, headers: dict[str, str]) -> bytes:
    return http_request("POST", f"/v2/models/{model}/infer", body, headers)


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive_answer(connection: socket.socket) -> None:
    """Receive one whole answer over HTTP/1.1."""
    answer = b""
    while True:
        received = connection.recv(RECEIVED)
        if not received:
            raise RuntimeError(f"the server closed the connection after {answer!r}")
        answer += received
        head, end, body = answer.partition(b"\r\n\r\n")
        if end:
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            if len(body) >= int(length):
                break
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"a request failed: {answer!r}")

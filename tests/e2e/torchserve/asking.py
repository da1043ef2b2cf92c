"""One request to both servers over HTTP, and the parts of an answer that are compared."""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_process import Server


@dataclass(frozen=True)
class Ask:
    """A request. `same`: what to take away from a body that differs from run to run, on both sides."""

    title: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    listener: str = "inference"
    same: Callable[[str], str] = str


@dataclass(frozen=True)
class Answer:
    """What a client sees. `reason`: of a handler's own; `headers`: by name in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def ask(server: Server, one: Ask) -> Answer:
    """Return the answer of a server on a connection of its own."""
    connection = http.client.HTTPConnection(getattr(server, one.listener), timeout=5 * PATIENCE_S)  # it starts workers
    try:
        connection.request(one.method, one.target, one.body or None, dict(one.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    headers = dict(_that_count(response, body))
    return Answer(response.status, _own_reason(response), headers, one.same(body.decode("latin-1")))


def _that_count(response: http.client.HTTPResponse, body: bytes) -> Iterator[tuple[str, str]]:
    for name, value in response.getheaders():
        match name.lower():
            case "connection" if value == "keep-alive":
                pass  # as without it, in HTTP/1.1
            case "allow" | "ts_stream_next":
                pass  # Slipway's of a 405, as HTTP wants it; TorchServe's between its own two processes
            case "x-request-id":
                yield "x-request-id", f"{len(value)} characters"
            case "content-length" if int(value) == len(body):
                yield "content-length", "the body's"
            case known:
                yield known, value


def _own_reason(response: http.client.HTTPResponse) -> str:
    """Return the reason that a handler has given: what is standard for a status, or stands for no reason, is none."""
    if response.reason in (f"Client Error ({response.status})", f"Server Error ({response.status})"):
        return ""
    return "" if response.reason == http.client.responses.get(response.status) else response.reason

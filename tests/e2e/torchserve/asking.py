"""One request to both servers over HTTP, and the parts of an answer that are compared."""

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_process import Server


@dataclass(frozen=True)
class Ask:
    """A request. `same`: what to take away from a body that differs from run to run, on both sides; `repeat_s`: the time after
    which it is sent again, since TorchServe may lose the answer of a coroutine on a busy machine, and then waits for ever."""

    title: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    listener: str = "inference"
    same: Callable[[str], str] = str
    repeat_s: float | None = None


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
    until = time.monotonic() + 5 * PATIENCE_S  # it starts workers
    while True:
        left = until - time.monotonic()
        try:
            return _ask_once(server, one, left if one.repeat_s is None else min(left, one.repeat_s))
        except TimeoutError:
            if time.monotonic() >= until:
                raise


def _ask_once(server: Server, one: Ask, timeout_s: float) -> Answer:
    connection = http.client.HTTPConnection(getattr(server, one.listener), timeout=timeout_s)
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

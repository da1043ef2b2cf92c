"""One question to both servers over HTTP, and what of an answer counts."""

import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.serving_process import PATIENCE_S
from tests.support.torchserve_process import Server

LISTENERS = ("inference", "management", "metrics")
# Their values are of one answer alone; that they are there, and how long, is not.
OF_ONE_ANSWER = {"x-request-id": lambda value: f"{len(value)} characters"}


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
    """What a client sees. `headers`: by name in lower case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: str

    def json(self) -> Any:
        return json.loads(self.body)


def ask(server: Server, one: Ask) -> Answer:
    """Return the answer of a server on a connection of its own."""
    connection = http.client.HTTPConnection(getattr(server, one.listener), timeout=PATIENCE_S)
    try:
        connection.request(one.method, one.target, one.body or None, dict(one.headers))
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    headers = {name.lower(): value for name, value in response.getheaders()}
    for name, shown in OF_ONE_ANSWER.items():
        if name in headers:
            headers[name] = shown(headers[name])
    if headers.get("content-length") == str(len(body)):
        headers["content-length"] = "the body's"
    return Answer(response.status, response.reason, headers, one.same(body.decode("latin-1")))

"""Reads the live feed as the dashboard does, one event after the other."""

import json
from typing import Any

from tests.serving.frontends.raw_http import RawClient, build

PATH = "/v2/slipway/live"


class Refused(Exception):
    """The server took no more subscribers."""


class Subscriber:
    """Events of one stream, in order."""

    def __init__(self, address: str, **headers: str) -> None:
        self.client = RawClient(address)
        self.client.send(build("GET", PATH, **headers))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.client.file.readline()
        if head.startswith(b"HTTP/1.1 503"):
            self.close()
            raise Refused
        assert head.startswith(b"HTTP/1.1 200")
        assert b"text/event-stream" in head
        assert b"Transfer-Encoding: chunked" in head

    def next(self) -> tuple[str, Any]:
        event = self.client.chunk().decode()
        kind, data = event.removeprefix("event: ").removesuffix("\n\n").split("\ndata: ")
        return kind, json.loads(data)

    def changes(self) -> list[Any]:
        """What the next event tells of models; events that tell nothing are passed over."""
        while not (models := self.next()[1].get("models")):
            pass
        return list(models)

    def quiet(self) -> Any:
        """The next event that tells nothing of models."""
        while (event := self.next()[1]).get("models") != []:
            pass
        return event

    def close(self) -> None:
        self.client.__exit__()

"""The base class of envelopes: takes the inputs out of requests, and wraps a handler's answers in the form that clients expect.

Source: pytorch/serve, docs/request_envelopes.md.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

HandleFunction = Callable[[list[Any], Any], list[Any]]


class BaseEnvelope(ABC):
    """Wraps the `handle` of a handler. context: the context of the batch."""

    def __init__(self, handle_fn: HandleFunction) -> None:
        self._handle_fn = handle_fn
        self.context: Any = None

    def handle(self, data: list[Any] | None, context: Any) -> list[Any]:
        self.context = context
        results = self._handle_fn(self.parse_input(data or []), context)
        return self.format_output(results)

    @abstractmethod
    def parse_input(self, data: list[Any]) -> list[Any]:
        """Return the handler's inputs for a batch."""

    @abstractmethod
    def format_output(self, data: list[Any]) -> list[Any]:
        """Return an answer for each request of the batch."""


def body_of(row: Any) -> Any:
    """Return the body of a request."""
    if not isinstance(row, dict):
        return row
    data = row.get("data")
    return row.get("body") if data is None else data


def object_of(row: Any) -> dict[str, Any]:
    """Return the JSON object in a request's body. Raises ValueError for any other body."""
    body = body_of(row)
    if isinstance(body, bytes | bytearray | str):
        body = json.loads(body)
    if not isinstance(body, dict):
        raise ValueError(f"the body must be a JSON object, not {type(body).__name__}")
    return body

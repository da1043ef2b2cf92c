"""A handler that returns the bytes of each request as its answer."""

from typing import Any


def handle(requests: list[dict[str, Any]] | None, context: Any) -> list[Any] | None:
    return None if requests is None else [request["body"] for request in requests]

"""Bodies that are one JSON object and no V2 inference request. Large ones are parsed on another thread than the loop's."""

import inspect
from collections.abc import Callable
from typing import Any

import orjson

from serving.core.errors import invalid
from serving.frontends.http1.exchange import Exchange
from serving.frontends.rest.json_input import LARGE, MAX_PARAMETERS, check_count
from serving.frontends.shared.worker_threads import in_thread
from serving.server import InferenceServer


def with_json(handle: Callable[[InferenceServer, Exchange, dict[str, Any]], Any]) -> Callable[..., Any]:
    """A handler that gets the body as an object, which is parsed on another thread where it is large."""

    def handler(server: InferenceServer, exchange: Exchange) -> Any:
        if len(exchange.body) < LARGE:
            return handle(server, exchange, json_object(exchange))
        return parsed_later(server, exchange)

    async def parsed_later(server: InferenceServer, exchange: Exchange) -> Any:
        answer = handle(server, exchange, await in_thread(json_object, exchange))
        return await answer if inspect.isawaitable(answer) else answer

    return handler


def json_object(exchange: Exchange) -> dict[str, Any]:
    """The body as an object; an empty body is an empty object."""
    if not exchange.body:
        return {}
    try:
        value = orjson.loads(exchange.body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"failed to parse the request JSON: {error}") from None
    if not isinstance(value, dict):
        raise invalid("expected the request body to be a JSON object")
    check_count("the request", value, MAX_PARAMETERS)
    return value

"""Bodies that are one JSON object and no V2 inference request. Large ones are parsed on another thread than the loop's."""

from collections.abc import Awaitable, Callable

import orjson

from serving.core.errors import invalid
from serving.frontends.http1.exchange import Exchange, HandlerResult
from serving.frontends.http1.message import Reply
from serving.frontends.rest.json_input import LARGE, MAX_PARAMETERS, check_count
from serving.frontends.shared.worker_threads import in_thread
from serving.server.inference_server import InferenceServer

JsonObject = dict[str, object]
JsonHandler = Callable[[InferenceServer, Exchange, JsonObject], HandlerResult]


def with_json(handle: JsonHandler) -> Callable[[InferenceServer, Exchange], HandlerResult]:
    """Make a handler that gets the body as an object, which is parsed on another thread where it is large."""

    def handler(server: InferenceServer, exchange: Exchange) -> HandlerResult:
        if len(exchange.body) < LARGE:
            return handle(server, exchange, json_object(exchange))
        return parsed_later(server, exchange)

    async def parsed_later(server: InferenceServer, exchange: Exchange) -> Reply | None:
        answer = handle(server, exchange, await in_thread(json_object, exchange))
        return await answer if isinstance(answer, Awaitable) else answer

    return handler


def json_object(exchange: Exchange) -> JsonObject:
    """Return the body as an object, an empty one for an empty body. INVALID_ARG for what is not a JSON object."""
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

"""Parses bodies that are one JSON object, except V2 inference requests. Large bodies are parsed on a worker thread."""

import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable

import orjson

from serving.core.errors import invalid
from serving.frontends.http1.exchange import Exchange, HandlerResult
from serving.frontends.http1.message import Reply
from serving.frontends.rest.json_input import LARGE, MAX_PARAMETERS, check_count
from serving.frontends.shared.worker_threads import in_thread
from serving.server.inference_server import InferenceServer

JsonObject = dict[str, object]
_NAME = re.compile(rb'"([^"\\]*)"\s*:')
JsonHandler = Callable[[InferenceServer, Exchange, JsonObject], HandlerResult]


def with_json(handle: JsonHandler, names_once: bool = False) -> Callable[[InferenceServer, Exchange], HandlerResult]:
    """Return a route's handler that parses the body, on a worker thread if it is large, and calls `handle`.

    names_once: whether to refuse repeated names; if not, the last value of a name counts."""
    parse = _with_names_once if names_once else json_object

    def handler(server: InferenceServer, exchange: Exchange) -> HandlerResult:
        if len(exchange.body) < LARGE:
            return handle(server, exchange, parse(exchange))
        return parsed_later(server, exchange)

    async def parsed_later(server: InferenceServer, exchange: Exchange) -> Reply | None:
        answer = handle(server, exchange, await in_thread(parse, exchange))
        return await answer if isinstance(answer, Awaitable) else answer

    return handler


def json_object(exchange: Exchange) -> JsonObject:
    """Return the body as an object; an empty body becomes an empty object. Raises INVALID_ARG for any other body."""
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


def _with_names_once(exchange: Exchange) -> JsonObject:
    """Return the body as an object. Also raises INVALID_ARG if the object, or its "parameters", repeats a name."""
    value = json_object(exchange)
    body = bytes(exchange.body)
    names = _NAME.findall(body)
    if len(set(names)) < len(names) or b"\\" in body:  # a name may be repeated, perhaps with escapes
        _refuse_twice(body)
    return value


def _refuse_twice(body: bytes) -> None:
    try:
        pairs = json.loads(body, object_pairs_hook=_Pairs, parse_int=str, parse_float=str)
    except RecursionError:  # a value with this many levels is refused later
        return
    given = [name for name, _ in pairs]
    given += [name for key, inner in pairs if key == "parameters" and isinstance(inner, _Pairs) for name, _ in inner]
    twice = next((name for name, times in Counter(given).items() if times > 1), None)
    if twice is not None:
        raise invalid(f"input '{twice[:100]}' already exists in request: give each name once")


class _Pairs(list[tuple[str, object]]):
    """The members of a JSON object, including repeated names."""

"""The table of an HTTP listener's routes.

A route is one line: method, pattern, API group (serving/frontends/shared/authorisation.py), handler. The method ANY matches
every method. In a pattern, {name} matches one path segment and {name*} all remaining segments; a part in [...] is optional. A
handler is called with (frontend, exchange): the object behind the routes, such as the inference server, and the request. The
module `exchange` describes how a handler answers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from serving.frontends.http1.exchange import Exchange, Handler, HandlerResult, RouteMatch
from serving.frontends.http1.known_heads import KnownHeads
from serving.frontends.http1.message import ErrorReply, Head, HttpError, Reply, error_reply, parse_head
from serving.frontends.shared.client_limits import CONTROL_BODY

F = TypeVar("F")
ANY = "*"  # a route's method that matches every method


class Route(NamedTuple, Generic[F]):
    method: str
    pattern: str
    group: str
    handler: Callable[[F, Exchange], HandlerResult]
    large: bool = False  # whether bodies may be as large as the table's limit, not only CONTROL_BODY
    encoded: bool = False  # whether the handler takes bodies in any Content-Encoding, not decoded


class RouteTable:
    """Parses request heads and finds their routes."""

    def __init__(
        self,
        routes: Sequence[Route[F]],
        frontend: F,
        max_body: int,
        error_replies: Mapping[str, ErrorReply] | None = None,
    ) -> None:
        """max_body: the largest body of a route with `large`, in bytes. error_replies: prefix of a path -> the function that
        makes the error replies of paths with this prefix; errors of other paths are {"error": message}. The function of the
        prefix "" also answers requests without a valid head."""
        self._max_body = max_body
        self._error_replies = dict(error_replies or {})
        self.unknown = RouteMatch(error_reply=self._error_replies.get("", error_reply))  # the match of an invalid head
        self._large = {route.pattern for route in routes if route.large}
        self._encoded = {route.pattern for route in routes if route.encoded}
        self._patterns = {route.pattern: _compile(route.pattern) for route in routes}
        self._methods: dict[str, dict[str, tuple[str, Handler]]] = {pattern: {} for pattern in self._patterns}
        for route in routes:
            self._methods[route.pattern][route.method] = (route.group, partial(route.handler, frontend))
        self._known: KnownHeads[RouteMatch] = KnownHeads()

    def find(self, data: bytes) -> tuple[Head, RouteMatch]:
        """Parse a head that ends with its empty line, and match it. Raises HttpError if the head is malformed."""
        found = self._known.find(data)
        if found is None:
            head = parse_head(data)
            found = head, self._match(head)
            self._known.remember(data, *found)
        return found

    def _match(self, head: Head) -> RouteMatch:
        """Match the path. The first matching pattern wins."""
        form = next((form for start, form in self._error_replies.items() if head.path.startswith(start)), error_reply)
        match = RouteMatch(min(CONTROL_BODY, self._max_body), form)
        for pattern, compiled in self._patterns.items():
            found = compiled.fullmatch(head.path)
            if found:
                match.params = {name: value for name, value in found.groupdict().items() if value is not None}
                if pattern in self._large:
                    match.max_body = self._max_body
                match.encoded = pattern in self._encoded
                _choose(match, head, self._methods[pattern])
                return match
        if head.path == "*" and head.method == "OPTIONS":
            match.handler = partial(_options, "GET, HEAD, POST, OPTIONS")
        else:
            match.refusal = partial(HttpError, 404, f"there is no route '{head.path[:200]}'")
        return match


def _choose(match: RouteMatch, head: Head, methods: dict[str, tuple[str, Handler]]) -> None:
    """Set the handler for the request's method, or the refusal."""
    chosen = methods.get("GET" if head.method == "HEAD" else head.method) or methods.get(ANY)
    if chosen is not None:
        match.group, match.handler = chosen
        return
    allowed = ", ".join(dict.fromkeys([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]))
    if head.method == "OPTIONS":
        match.handler = partial(_options, allowed)
        return
    message = f"method {head.method} is not allowed for '{head.path[:200]}', expected {allowed}"
    match.refusal = partial(HttpError, 405, message, (("Allow", allowed),))


def _options(allowed: str, exchange: Exchange) -> Reply:
    return Reply(204, headers=(("Allow", allowed),))


def _compile(pattern: str) -> re.Pattern[str]:
    escaped = pattern.replace("[", "(?:").replace("]", ")?")
    whole = re.sub(r"\{(\w+)\*\}", r"(?P<\1>.+)", escaped)
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", whole))

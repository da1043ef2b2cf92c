"""What the HTTP and the metrics frontend share: a listening socket, a table of routes, limits, time-outs and draining.

A route is one line: method, pattern, API group (serving/frontends/shared/authorisation.py), handler. In a pattern {name} is
one path segment and [...] may be missing. A handler is called with (context, exchange); see exchange.Exchange for what it
returns.
"""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import re2

from serving.cli.options import Options
from serving.cli.tls import listener_options
from serving.core.errors import ServingError
from serving.frontends.http1.body import CONTROL_BODY
from serving.frontends.http1.connection import Connection
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Head, HttpError, Reply, parse_head
from serving.frontends.shared.authorisation import Authoriser
from serving.frontends.shared.patience import Patience
from serving.resources.request_memory import RequestMemory

log = logging.getLogger(__name__)

SCRATCH = 256 << 10  # bytes read at once
CACHED_HEADS = 1024
CACHED_HEAD_SIZE = 2048

Handler = Callable[[Any, Exchange], Any]


class Route(NamedTuple):
    method: str
    pattern: str
    group: str
    handler: Handler
    large: bool = False  # takes bodies up to the listener's limit, and not only CONTROL_BODY


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, except the last."""

    head_s: float = 10.0  # for a request head to arrive whole
    body_s: float = 30.0  # in which a body must end, or come on by `body_bytes_per_s` for each; 0 for ever
    idle_s: float = 600.0  # for the next request: clients keep pools of connections, so long
    leaving_s: float = 5.0  # for the last request of a connection when the server shuts down
    stalled_s: float = 60.0  # for a client that does not take its answer
    linger_s: float = 2.0  # for a refused client to read why
    body_bytes_per_s: int = 1024

    @classmethod
    def from_options(cls, options: Options) -> "Limits":
        return cls(body_s=options.request_stall_secs, body_bytes_per_s=options.request_min_rate)

    def patience(self) -> Patience:
        return Patience(stall_s=self.body_s, bytes_per_s=self.body_bytes_per_s)


class RouteTable:
    """Finds the handler of a path and completes a parsed head with it."""

    def __init__(self, routes: Sequence[Route], context: Any, max_body: int) -> None:
        self._small = min(CONTROL_BODY, max_body)
        self._limits = {route.pattern: max_body for route in routes if route.large}
        self._patterns: dict[str, re.Pattern[str]] = {route.pattern: _compile(route.pattern) for route in routes}
        self._routes: dict[str, dict[str, tuple[str, Any]]] = {pattern: {} for pattern in self._patterns}
        for route in routes:
            self._routes[route.pattern][route.method] = (route.group, partial(route.handler, context))

    def complete(self, head: Head) -> None:
        """Set `handler`, `group`, `params` and `max_body`, or `refusal`. Earlier patterns win."""
        head.max_body = self._small
        for pattern, compiled in self._patterns.items():
            match = compiled.fullmatch(head.path)
            if match:
                head.params = {name: value for name, value in match.groupdict().items() if value is not None}
                head.max_body = self._limits.get(pattern, self._small)
                self._choose(head, self._routes[pattern])
                return
        if head.path == "*" and head.method == "OPTIONS":
            head.handler = partial(_options, "GET, HEAD, POST, OPTIONS")
        else:
            head.refusal = HttpError(404, f"there is no route '{head.path[:200]}'")

    def _choose(self, head: Head, methods: dict[str, tuple[str, Any]]) -> None:
        chosen = methods.get("GET" if head.method == "HEAD" else head.method)
        if chosen is not None:
            head.group, head.handler = chosen
            return
        allowed = ", ".join([*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"])
        if head.method == "OPTIONS":
            head.handler = partial(_options, allowed)
            return
        message = f"method {head.method} is not allowed for '{head.path[:200]}', expected {allowed}"
        head.refusal = HttpError(405, message, (("Allow", allowed),))


def _options(allowed: str, exchange: Exchange) -> Reply:
    return Reply(204, headers=(("Allow", allowed),))


def _compile(pattern: str) -> re.Pattern[str]:
    escaped = pattern.replace("[", "(?:").replace("]", ")?")
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", escaped))


class Listener:
    """One bound socket and its connections."""

    def __init__(
        self,
        routes: Sequence[Route],
        context: Any,
        authoriser: Authoriser,
        max_body: int,
        memory: RequestMemory,
        limits: Limits = Limits(),
    ) -> None:
        self.authoriser = authoriser
        self.memory = memory
        self.limits = limits
        self.patience = limits.patience()
        self.loop = asyncio.get_running_loop()
        self.scratch = bytearray(SCRATCH)
        self.scratch_view = memoryview(self.scratch)
        self.tick = 0  # seconds since start, counted while there are connections
        self.forwarded: re2._Regexp | None = None  # headers that become parameters of a request
        self._table = RouteTable(routes, context, max_body)
        self._heads: dict[bytes, Head] = {}
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self.on_abandoned: Callable[[Exchange], None] | None = None

    async def start(
        self, address: str, port: int, tls: ssl.SSLContext | None = None, reuse_port: bool = False
    ) -> tuple[str, int]:
        """Listen; the address bound. Raises OSError."""
        self._server = await self.loop.create_server(
            lambda: Connection(self), address, port, backlog=1024, reuse_port=reuse_port, **listener_options(tls)
        )
        host, bound = self._server.sockets[0].getsockname()[:2]
        return str(host), int(bound)

    async def drain(self) -> None:
        """Accept no more; return when every connection has answered what it was asked, or is idle too long, and is closed."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()
        await self._empty.wait()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    # -- called by connections -------------------------------------------------------------------------------------
    def head(self, data: bytes) -> Head:
        """The parsed head with its route. Clients send the same head again and again: equal bytes are parsed once."""
        head = self._heads.get(data)
        if head is None:
            head = parse_head(data)
            self._table.complete(head)
            if len(data) <= CACHED_HEAD_SIZE:
                if len(self._heads) >= CACHED_HEADS:
                    self._heads.clear()
                self._heads[data] = head
        return head

    def authorise(self, head: Head) -> None:
        self.authoriser.check(head.group, head.headers, head.params.get("model"))

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._empty.clear()
        if self._timer is None:
            self._timer = self.loop.call_later(1.0, self._sweep)

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def abandoned(self, exchange: Exchange) -> None:
        if self.on_abandoned is not None:
            self.on_abandoned(exchange)

    def note_error(self, error: Exception) -> None:
        """What the client is not told goes to the log."""
        if not isinstance(error, ServingError | HttpError):
            log.error("a request failed unexpectedly", exc_info=error)

    def _sweep(self) -> None:
        self.tick += 1
        for connection in list(self._connections):
            connection.sweep(self.tick)
        self._timer = self.loop.call_later(1.0, self._sweep) if self._connections else None

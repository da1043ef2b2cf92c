"""Decides whether to read the body of a request, by its route, its sender's rights, and the bytes that this process holds.

The decision is made in Twisted's `Request.gotLength`, when the headers of a request are complete and its body is not.

* A body of at most SMALL_BODY bytes is read without this check, as long as all such bodies together have at most SMALL_BODIES
  bytes. The application checks the request afterwards.
* A larger body needs a route that accepts its size (otherwise 404, 405 or 413) and a sender with the right (otherwise 401 or
  403). While the sender is looked up, nothing is read from the connection.
* All large bodies together have at most LARGE_BODIES bytes (otherwise 503 with Retry-After). The large bodies of one person
  have at most ONE_PERSONS bytes (otherwise 429).
* A body that arrives too slowly is refused (408): see DEADLINE_S and SLOWEST.

The public interfaces of Twisted and daphne cannot do this. Daphne calls an ASGI application, and with it Django's upload
handlers, only after it has read the whole body into a temporary file and then into memory. In a test, an ASGI application
applied these rules to 40 bodies of 65 MiB from unknown senders. All were read (2.7 GB, and as much in temporary files), and the
process grew by up to 1.3 GB. An endless chunked body filled the disk. With this module, the senders of the 40 bodies could send
only 126 MB, mostly into kernel buffers, and the process did not grow.
"""

import asyncio
import json
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from urllib.parse import unquote

import daphne.http_protocol
import daphne.ws_protocol
from asgiref.sync import ThreadSensitiveContext
from channels.db import database_sync_to_async
from daphne.http_protocol import WebRequest
from django.conf import settings
from django.http import parse_cookie
from django.urls import Resolver404, resolve
from twisted.python.failure import Failure
from twisted.web.http import RESPONSES

from dashboard.access.authorisation import NOBODY, Actor, Right, require
from dashboard.access.sessions import actor_of_session
from dashboard.accounts.authentication import actor_of_token
from dashboard.shared.exceptions import Forbidden
from dashboard.web.rest.endpoint import Endpoint

SMALL_BODY = 64 << 10
SMALL_BODIES = 32 << 20
LARGE_BODIES = 192 << 20
ONE_PERSONS = 128 << 20  # leaves room for a body of another person on any route
# A body must be complete within DEADLINE_S plus one second for each SLOWEST bytes. Twisted closes idle connections.
DEADLINE_S, SLOWEST = 60.0, 16 << 10
# A refused client may still be sending: up to this many bytes are read and dropped, so that the client reads the answer.
LINGER_BYTES, LINGER_S = 256 << 10, 5.0
LOOKUPS = 8  # the most look-ups of senders at a time, because each takes a thread
RETRY = {"Retry-After": "2"}  # seconds


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    sentence: str
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """The rule for bodies at an address. right: the needed right, or None if no sign-in is needed. limit: the most bytes."""

    right: Right | None
    limit: int
    api: bool


class Budget:
    """Limits the announced bytes of all present bodies together, and of each person's bodies."""

    def __init__(self, limit: int, one_persons: int) -> None:
        self._limit, self._one_persons = limit, one_persons
        self._taken: Counter[int] = Counter()  # by person

    def take(self, size: int, person: int) -> Refusal | None:
        """Reserve bytes for a person; return a Refusal if they do not fit."""
        if self._taken[person] + size > self._one_persons:
            return Refusal(429, "too many bytes of your requests are under way; try again when they have ended", RETRY)
        if self._taken.total() + size > self._limit:
            return Refusal(503, "too many bytes of requests are under way; try again in a moment", RETRY)
        self._taken[person] += size
        return None

    def give(self, size: int, person: int) -> None:
        self._taken[person] -= size
        if not self._taken[person]:
            del self._taken[person]


def route_of(method: str, path: str) -> Route | Refusal:
    """Return the rule for bodies at an address, or a Refusal if the address takes no body."""
    try:
        view = resolve(path).func
    except Resolver404:
        return Refusal(404, "nothing at this address takes a body")
    endpoint: type[Endpoint] | None = getattr(view, "view_class", None)
    if endpoint is not None and hasattr(endpoint, "rights"):
        right = endpoint.rights.get(method)
        if right is None or method == "GET":
            return Refusal(405, f"{method} takes no body at this address")
        return Route(right, endpoint.max_body_bytes, api=True)
    if method != "POST":
        return Refusal(405, f"{method} takes no body at this address")
    if not getattr(view, "login_required", True):
        return Route(None, SMALL_BODY, api=False)
    return Route(getattr(view, "right", Right.VIEW), settings.BODY_BYTES, api=False)


def actor_of_headers(authorization: str, cookie: str, *, api: bool) -> Actor:
    """Return the sender of a request by the application's rules: tokens count only in the REST API, sessions everywhere."""
    scheme, _, secret = authorization.partition(" ")
    if api and scheme.lower() == "bearer":
        return actor_of_token(secret.strip())
    key = parse_cookie(cookie).get(settings.SESSION_COOKIE_NAME, "")
    return actor_of_session(key) if key else NOBODY


def judge(route: Route, authorization: str, cookie: str) -> Actor | Refusal:
    """Return the sender if the body may be read, else a Refusal. The database is read only if the request names a sender."""
    if route.right is None:
        return NOBODY
    actor = actor_of_headers(authorization, cookie, api=route.api)
    if actor.user is None:
        challenge = {"WWW-Authenticate": "Bearer"} if route.api else {}
        return Refusal(401, "sign in, or send a token that is valid, before you send this", challenge)
    try:
        require(actor, route.right)
    except Forbidden as error:
        return Refusal(403, error.message)
    return actor


class Admission:
    """The state that the requests of one process share: the bytes of bodies, and the look-ups of senders."""

    def __init__(self) -> None:
        self.small_bodies = Budget(SMALL_BODIES, SMALL_BODIES)  # their senders are not looked up
        self.large_bodies = Budget(LARGE_BODIES, ONE_PERSONS)
        self._lookups = asyncio.Semaphore(LOOKUPS)

    async def judge(self, route: Route, authorization: str, cookie: str) -> Actor | Refusal:
        async with self._lookups, ThreadSensitiveContext():
            return await database_sync_to_async(judge)(route, authorization, cookie)


class AdmittedRequest(WebRequest):  # type: ignore[misc]  # daphne has no types
    """Daphne's request, except that its body is not read before the body is admitted; see admit_bodies."""

    admission = Admission()
    _limit: int | None = None  # the most bytes of a body without an announced length
    _refused = False
    _judging: "asyncio.Task[None] | None" = None
    _deadline: TimerHandle | None = None
    _held: tuple[Budget, int, int] | None = None  # budget, bytes, person

    # -- Twisted's callbacks ---------------------------------------------------------------------------------------
    def gotLength(self, length: int | None) -> None:
        """Decide on the body when the headers are complete. length: the announced bytes, or None for a body in chunks."""
        super().gotLength(length)
        if length == 0:
            return
        route = route_of(self._method(), self._path())
        size = self._announced(length, route)
        if size <= SMALL_BODY and self._take(self.admission.small_bodies, size, NOBODY) is None:
            self._wait_for_body(size)
        elif isinstance(route, Refusal):
            self._refuse(route)
        elif size > route.limit:
            self._refuse(Refusal(413, f"expected a body of at most {route.limit} bytes, but {size} were announced"))
        else:
            self._look_up(route, size)

    def handleContentChunk(self, data: bytes) -> None:
        if self._refused:
            return
        if self._limit is not None and self.content.tell() + len(data) > self._limit:
            self._refuse(Refusal(413, f"expected a body of at most {self._limit} bytes, but more came"))
            return
        super().handleContentChunk(data)

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        """Hand the complete body to daphne."""
        self._stop_waiting()
        if not self._refused:
            super().requestReceived(command, path, version)

    def finish(self) -> None:
        super().finish()
        self._give_back()

    def connectionLost(self, reason: Failure) -> None:
        self._stop_waiting()
        super().connectionLost(reason)
        self._give_back()

    # -- admission -------------------------------------------------------------------------------------------------
    def _announced(self, length: int | None, route: Route | Refusal) -> int:
        """Return the largest size that the body can have, in bytes."""
        if length is not None:
            return length
        self._limit = SMALL_BODY if isinstance(route, Refusal) else route.limit
        return self._limit

    def _look_up(self, route: Route, size: int) -> None:
        """Stop reading from the connection until the body is admitted or refused."""
        authorization, cookie = self._header(b"authorization"), self._header(b"cookie")
        if not authorization and not cookie and isinstance(refusal := judge(route, "", ""), Refusal):
            self._refuse(refusal)
            return
        expects = self._header(b"expect").lower() == "100-continue"
        self.requestHeaders.removeHeader(b"expect")  # otherwise Twisted would ask for the body immediately
        self.channel.transport.pauseProducing()
        self._judging = asyncio.ensure_future(
            self._admit(self.admission.judge(route, authorization, cookie), size, expects)
        )

    async def _admit(self, judging: Awaitable[Actor | Refusal], size: int, expects: bool) -> None:
        refusal: Refusal | None
        try:
            judged = await judging
        except Exception:
            daphne.http_protocol.logger.exception("could not tell who sends a body")
            refusal = Refusal(503, "your sign-in cannot be checked at the moment; try again", RETRY)
        else:
            refusal = judged if isinstance(judged, Refusal) else self._take(self.admission.large_bodies, size, judged)
        self._judging = None
        if refusal is not None:
            self._refuse(refusal)
            return
        self._wait_for_body(size)
        if expects:
            self.channel.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.channel.transport.resumeProducing()

    def _take(self, budget: Budget, size: int, actor: Actor) -> Refusal | None:
        person = actor.user.pk if actor.user is not None else 0
        refusal = budget.take(size, person)
        if refusal is None:
            self._held = (budget, size, person)
        return refusal

    def _give_back(self) -> None:
        """Give the reserved bytes back when the application has finished, which may be after the connection is lost."""
        held, self._held = self._held, None
        if held is None:
            return
        budget, size, person = held
        application = self.server.connections.get(self, {}).get("application_instance")
        if application is None or application.done():
            budget.give(size, person)
        else:
            application.add_done_callback(lambda _: budget.give(size, person))

    def _wait_for_body(self, size: int) -> None:
        late = Refusal(408, "the body came too slowly; try again")
        seconds = DEADLINE_S + size / SLOWEST
        self._deadline = asyncio.get_running_loop().call_later(seconds, self._refuse, late)

    def _stop_waiting(self) -> None:
        """Cancel the look-up and the deadline. If the body is complete, the application checks the sender's right."""
        if self._judging is not None:
            self._judging.cancel()
            self._judging = None
            if self.channel is not None:
                self.channel.transport.resumeProducing()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- refusal ---------------------------------------------------------------------------------------------------
    def _refuse(self, refusal: Refusal) -> None:
        """Answer with the refusal, stop reading into memory, and close the connection."""
        if self._refused:
            return
        self._refused = True
        self._stop_waiting()
        self._give_back()
        channel, transport = self.channel, self.channel.transport
        dropped = 0

        def drop(data: bytes) -> None:
            nonlocal dropped
            dropped += len(data)
            if dropped > LINGER_BYTES:
                transport.abortConnection()

        channel.dataReceived = drop
        transport.unregisterProducer()
        body = json.dumps({"error": refusal.sentence}).encode()
        headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Connection": "close",
            **refusal.headers,
        }
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        channel.writeHeaders(b"HTTP/1.1", b"%d" % refusal.status, RESPONSES.get(refusal.status, b""), pairs)
        channel.write(body)
        transport.loseWriteConnection()
        transport.resumeProducing()
        asyncio.get_running_loop().call_later(LINGER_S, transport.abortConnection)

    # -- the head --------------------------------------------------------------------------------------------------
    def _header(self, name: bytes) -> str:
        values: list[bytes] = self.requestHeaders.getRawHeaders(name) or [b""]
        return values[0].decode("latin-1")

    def _method(self) -> str:
        command: bytes = self.channel._command
        return command.decode("latin-1").upper()

    def _path(self) -> str:
        path: bytes = self.channel._path
        return unquote(path.partition(b"?")[0].decode("latin-1"))


class DeafWebSocket(daphne.ws_protocol.WebSocketProtocol):  # type: ignore[misc]  # daphne has no types
    """Daphne's WebSocket, except that it drops messages from browsers. Nothing reads them, and daphne would queue them."""

    def onMessage(self, payload: bytes, isBinary: bool) -> None:  # autobahn's name
        """Drop the message."""


def admit_bodies() -> None:
    """Make daphne use these classes, so that it reads no body before admission and keeps no message of a WebSocket."""
    daphne.http_protocol.WebRequest = AdmittedRequest
    daphne.ws_protocol.WebSocketFactory.protocol = DeafWebSocket

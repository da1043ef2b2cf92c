"""The only code that speaks to an inference server: its V2 routes, its control routes, its live feed.

    ServerClient(server, connections)   blocking, for REST
    AsyncServerClient(server)           for consumers and `watch`; also has the live feed

Both have the same methods (those of `_Routes`); the second's are awaited. What goes wrong is a DashboardError with a sentence:
Unreachable where no answer came, else the class that fits the status, with the server's own words.
"""

import atexit
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

import httpx
import orjson
from django.conf import settings

from dashboard.models import Server
from dashboard.shared.exceptions import DashboardError, Forbidden, Invalid, NotFound, Unavailable

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0
INFER_TIMEOUT_S = 300.0
# A model may compile or download for long; the server goes on loading even when nobody waits.
LOAD_TIMEOUT_S = 3600.0
# The feed speaks every second.
FEED_SILENCE_S = 5.0


class Unreachable(Unavailable):
    """No answer came: the server is down, starting, or hangs. `midway`: the connection broke after the question was asked."""

    def __init__(self, message: str, *, midway: bool = False) -> None:
        super().__init__(message)
        self.midway = midway


class Refused(DashboardError):
    """An answer that says no, for a reason of the server's own (its 5xx)."""


_REFUSALS: dict[int, type[DashboardError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    503: Unavailable,
}


@dataclass(frozen=True, slots=True)
class Call:
    """One exchange. `parse` false: the answer is taken as it comes, whatever its status."""

    method: str
    path: str
    content: bytes | None = None
    headers: Mapping[str, str] | None = None
    control: bool = False
    timeout: float = ANSWER_TIMEOUT_S
    parse: bool = True


@dataclass(frozen=True, slots=True)
class RawAnswer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event of the live feed: kind "hello" or "stats"."""

    kind: str
    data: dict[str, Any]


def _model_path(name: str, version: str = "") -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(str(version), safe='')}" if version else path


class _Routes:
    """One method for each route; `_send` is the blocking or the awaited exchange."""

    def __init__(self, server: Server) -> None:
        self.server = server
        # The keys of the bundled server, which no other one is shown.
        own = server.bundled
        self._key = {settings.SERVER_CONTROL_HEADER: settings.SERVER_CONTROL_KEY} if own else {}
        self._token = (
            {"Authorization": f"Bearer {settings.SERVER_INFER_KEY}"} if own and settings.REQUIRE_TOKENS else {}
        )

    def _send(self, call: Call) -> Any:
        raise NotImplementedError

    def metadata(self) -> Any:
        return self._send(Call("GET", "/v2"))

    def index(self) -> Any:
        """[{"name", "version", "state", "reason", "condition", "failed"}] of every model in the repository."""
        return self._send(Call("POST", "/v2/repository/index", b"{}", control=True))

    def load(self, name: str, config: str = "") -> Any:
        """Returns when the model is ready; nothing happens when nothing of it changed. `config`: JSON, in place of the file."""
        path = f"/v2/repository/models/{quote(name, safe='')}/load"
        body = orjson.dumps({"parameters": {"config": config}} if config else {})
        return self._send(Call("POST", path, body, control=True, timeout=LOAD_TIMEOUT_S))

    def unload(self, name: str) -> Any:
        path = f"/v2/repository/models/{quote(name, safe='')}/unload"
        return self._send(Call("POST", path, b"{}", control=True))

    def model_metadata(self, name: str, version: str = "") -> Any:
        return self._send(Call("GET", _model_path(name, version)))

    def model_config(self, name: str, version: str = "") -> Any:
        return self._send(Call("GET", f"{_model_path(name, version)}/config"))

    def model_statistics(self, name: str, version: str = "") -> Any:
        return self._send(Call("GET", f"{_model_path(name, version)}/stats"))

    def infer_raw(self, name: str, body: bytes, headers: Mapping[str, str], version: str = "") -> Any:
        """Pass a request on as it is; the RawAnswer is the server's, refusals too."""
        path = f"{_model_path(name, version)}/infer"
        call = Call("POST", path, body, {**headers, **self._token}, timeout=INFER_TIMEOUT_S, parse=False)
        return self._send(call)

    def _request(self, client: Any, call: Call) -> Any:
        headers = {**(call.headers or {}), **(self._key if call.control else {})}
        timeout = httpx.Timeout(call.timeout, connect=CONNECT_TIMEOUT_S)
        return client.request(
            call.method, f"{self.server.http_url}{call.path}", content=call.content, headers=headers, timeout=timeout
        )

    def _answer(self, call: Call, response: httpx.Response) -> Any:
        if not call.parse:
            return RawAnswer(response.status_code, dict(response.headers), response.content)
        if response.is_success:
            return _json(response.content) if response.content else {}
        raise _refusal(self.server.name, response)

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        reasons = {
            httpx.ConnectError: "nothing listens at its address",
            httpx.ConnectTimeout: "it takes no connections",
            httpx.ReadTimeout: "it did not answer in time",
        }
        reason = next((text for kind, text in reasons.items() if isinstance(error, kind)), "the connection was lost")
        midway = isinstance(error, httpx.ReadError | httpx.RemoteProtocolError)
        return Unreachable(f"inference server {self.server.name} does not answer: {reason}", midway=midway)


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        raise Refused("the inference server's answer is not JSON") from None


def _refusal(server: str, response: httpx.Response) -> DashboardError:
    try:
        message = orjson.loads(response.content)["error"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        message = f"inference server {server} answered with status {response.status_code}"
    return _REFUSALS.get(response.status_code, Refused)(message)


_OPTIONS: dict[str, Any] = {"trust_env": False, "follow_redirects": False}  # proxies of the environment are not for us


class ServerConnections:
    """HTTP connections that stay open between calls, for several threads and servers. A client is made at the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None

    def client(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(**_OPTIONS)
                atexit.register(self._client.close)
            return self._client


class ServerClient(_Routes):
    """Blocking; safe to use from several threads."""

    def __init__(self, server: Server, connections: ServerConnections) -> None:
        super().__init__(server)
        self._connections = connections

    def _send(self, call: Call) -> Any:
        try:
            response = self._request(self._connections.client(), call)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return self._answer(call, response)


class AsyncServerClient(_Routes):
    """Used as `async with AsyncServerClient(server) as client`; belongs to one event loop."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._client = httpx.AsyncClient(**_OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def _send(self, call: Call) -> Any:
        try:
            response = await self._request(self._client, call)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return self._answer(call, response)

    async def feed(self) -> AsyncGenerator[FeedEvent, None]:
        """The live feed, until the server ends it or falls silent: then Unreachable."""
        timeout = httpx.Timeout(FEED_SILENCE_S, connect=CONNECT_TIMEOUT_S)
        url = f"{self.server.metrics_url}/v2/slipway/live"
        try:
            async with self._client.stream("GET", url, headers=self._key, timeout=timeout) as response:
                if not response.is_success:
                    await response.aread()
                    raise _refusal(self.server.name, response)
                async for event in _events(response.aiter_lines()):
                    yield event
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        raise Unreachable(f"inference server {self.server.name} does not answer: its live feed ended", midway=True)


async def _events(lines: AsyncIterator[str]) -> AsyncIterator[FeedEvent]:
    """Server-sent events (WHATWG HTML, 9.2.6) with JSON data; comments and other fields are skipped."""
    kind = "message"
    data: list[str] = []
    async for line in lines:
        if not line:
            if data:
                yield FeedEvent(kind, _json("\n".join(data).encode()))
            kind, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)

"""The only code that speaks to an inference server over HTTP: its V2 routes, its control routes, its live feed.

    ServerClient(server, connections)   blocking, for REST; also samples traffic
    AsyncServerClient(server)           for consumers, batch jobs, `watch` and `up`; also reads the live feed

Methods of AsyncServerClient are awaited. Every failure raises a DashboardError with a sentence: Unreachable if no answer
arrives, else the class for the status (_REFUSALS) with the server's message.
"""

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast
from urllib.parse import quote

import httpx
import orjson

from dashboard.models import Server
from dashboard.models.release import CheckStep
from dashboard.models.rollout import TrafficReport
from dashboard.servers.credentials import control_headers, tls_context, tls_name
from dashboard.servers.infer_key import bearer
from dashboard.servers.messages import (
    FeedEvent,
    Hello,
    HelloEvent,
    IndexRow,
    LoadAnswer,
    MemoryMap,
    Mismatch,
    NotedAnswer,
    RefusalBody,
    ServerMetadata,
    StatisticsAnswer,
    Stats,
    StatsEvent,
    TrafficHead,
    TrafficSamples,
)
from dashboard.shared.choices import ModelStatus
from dashboard.shared.exceptions import DashboardError, Forbidden, Invalid, NotFound, Unavailable
from dashboard.shared.fence import fence_headers
from dashboard.shared.json_shape import HERE, misfit
from repository.core.condition import Condition
from repository.core.json_types import JsonObject
from repository.core.layout import MAX_NAME_BYTES, parse_version
from repository.core.plain_text import plain

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0
WHOLE_S = 60.0  # the longest time from the beginning of an answer to its end
# The most bytes of an answer, except answers to inference requests, which have no limit.
ANSWER_BYTES = 64 << 20
EVENT_BYTES = 64 << 20  # the most bytes of an event of the feed: the first one has 1 to 2 KB of each version
LINE_COST = 64  # the memory of a line in addition to its characters, in bytes
INFER_TIMEOUT_S = 300.0
# A model may compile or download for a long time. The server continues a load after the client has disconnected.
LOAD_TIMEOUT_S = 3600.0
# The feed sends an event every second.
FEED_SILENCE_S = 5.0
FIRST_EVENT_S = 20.0  # for the first event with counters, which has every version: 10,000 models are 10 MB
# No compression: a few compressed bytes could become gigabytes before they are counted.
_PLAIN = {"Accept-Encoding": "identity"}

_SHOWN = 100  # the most characters that are shown of a path or value that is not understood

_STATES, _CONDITIONS = frozenset(("", *ModelStatus.values)), frozenset(Condition)

# Slipway's own load parameter with golden requests.
GOLDEN = "slipway.golden"

T = TypeVar("T")


class Unreachable(Unavailable):
    """No answer came: the server is down, is starting, or hangs. midway: the connection broke after the request was sent."""

    def __init__(self, message: str, *, midway: bool = False) -> None:
        super().__init__(message)
        self.midway = midway


class Refused(DashboardError):
    """The server's answer has an unexpected status, or is not understood."""


VERSION_LIMIT = 100  # the number of characters of a version that are kept
MESSAGE_LIMIT = 20_000  # the number of characters of an error that are kept; our own server sends fewer

# Status of an answer -> its error; Refused for all others.
_REFUSALS: dict[int, type[DashboardError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    503: Unavailable,
}


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An unparsed answer of any status."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request to a server. read: turns the answer into the result. timeout: seconds."""

    method: str
    path: str
    content: bytes
    read: Callable[[RawAnswer], T]
    headers: Mapping[str, str] | None = None
    control: bool = False  # whether the route needs the control key
    timeout: float = ANSWER_TIMEOUT_S
    any_status: bool = False  # whether `read` accepts refusals too
    limit: int | None = ANSWER_BYTES  # bytes of the answer
    of_metrics: bool = False  # whether the route is on the listener of the metrics


# -- the routes --------------------------------------------------------------------------------------------------------
def _index() -> Call[list[IndexRow]]:
    def read(answer: RawAnswer) -> list[IndexRow]:
        return index_rows(_parsed(answer.body, list[IndexRow]))

    return Call("POST", "/v2/repository/index", b"{}", read, control=True)


def _metadata() -> Call[ServerMetadata]:
    def read(answer: RawAnswer) -> ServerMetadata:
        found: ServerMetadata = _parsed(answer.body, ServerMetadata)
        return {
            "name": plain(found.get("name", ""))[:VERSION_LIMIT],
            "version": plain(found.get("version", ""))[:VERSION_LIMIT],
            "extensions": found.get("extensions", []),
        }

    return Call("GET", "/v2", b"", read)


def index_rows(rows: list[IndexRow]) -> list[IndexRow]:
    """Return the rows of an index. Raises Refused if a row has an impossible name, version, state or condition."""
    for index, row in enumerate(rows):
        version = row.get("version", "")
        wrong = "version" if version and parse_version(version) is None else ""
        wrong = "name" if len(row["name"].encode()) > MAX_NAME_BYTES else wrong
        wrong = "state" if row.get("state", "") not in _STATES else wrong
        wrong = "condition" if row.get("condition", "") not in _CONDITIONS else wrong
        if wrong:
            value = plain(str(row[wrong]))[:_SHOWN]  # type: ignore[literal-required]  # one of its names
            raise Refused(f"the inference server's index is not understood: row {index} has the {wrong} '{value}'")
        if "reason" in row:
            row["reason"] = row["reason"][:MESSAGE_LIMIT]
    return rows


def _load(name: str, config: str, golden: str) -> Call[LoadAnswer]:
    path = f"/v2/repository/models/{quote(name, safe='')}/load"
    parameters = {"config": config, GOLDEN: golden}
    body = orjson.dumps({"parameters": {key: value for key, value in parameters.items() if value}})

    def read(answer: RawAnswer) -> LoadAnswer:
        loaded: LoadAnswer = _parsed(answer.body, LoadAnswer) if answer.body.strip() else {}
        return loaded

    return Call("POST", path, body, read, control=True, timeout=LOAD_TIMEOUT_S)


def _unload(name: str) -> Call[None]:
    return Call("POST", f"/v2/repository/models/{quote(name, safe='')}/unload", b"{}", _nothing, control=True)


def _break_off(name: str) -> Call[None]:
    return Call("POST", f"/v2/slipway/models/{quote(name, safe='')}/load/break_off", b"{}", _nothing, control=True)


def _infer(name: str, body: bytes, headers: Mapping[str, str], version: str) -> Call[RawAnswer]:
    path = f"/v2/models/{quote(name, safe='')}"
    path = f"{path}/versions/{quote(version, safe='')}/infer" if version else f"{path}/infer"

    def read(answer: RawAnswer) -> RawAnswer:
        return answer

    return Call("POST", path, body, read, headers, timeout=INFER_TIMEOUT_S, any_status=True, limit=None)


def _statistics(name: str, version: str) -> Call[JsonObject]:
    def read(answer: RawAnswer) -> JsonObject:
        parsed: StatisticsAnswer = _parsed(answer.body, StatisticsAnswer)
        if len(parsed["model_stats"]) != 1:
            raise Refused("the inference server's statistics are not understood: expected one row for the version")
        return parsed["model_stats"][0]

    return Call("GET", f"/v2/models/{quote(name, safe='')}/versions/{quote(version, safe='')}/stats", b"", read)


def _sample(name: str, count: int, seconds: float) -> Call[TrafficSamples]:
    path = f"/v2/slipway/models/{quote(name, safe='')}/sample"
    body = orjson.dumps({"count": count, "seconds": seconds})

    def read(answer: RawAnswer) -> TrafficSamples:
        samples: TrafficSamples = _parsed(answer.body, TrafficSamples)
        return samples

    return Call("POST", path, body, read, control=True, timeout=seconds + ANSWER_TIMEOUT_S)


def _traffic(name: str) -> Call[TrafficReport | None]:
    def read(answer: RawAnswer) -> TrafficReport | None:
        if _parsed(answer.body, TrafficHead)["rollout"] is None:
            return None
        report: TrafficReport = _parsed(answer.body, TrafficReport)
        return report

    return Call("GET", f"/v2/slipway/models/{quote(name, safe='')}/traffic", b"", read, control=True)


def _mismatches(name: str, after: int) -> Call[list[Mismatch]]:
    def read(answer: RawAnswer) -> list[Mismatch]:
        found: list[Mismatch] = _parsed(answer.body, list[Mismatch])
        return found

    path = f"/v2/slipway/models/{quote(name, safe='')}/traffic/mismatches?after={after}"
    return Call("GET", path, b"", read, control=True)


def _forget_mismatches(name: str, until: float) -> Call[None]:
    path = f"/v2/slipway/models/{quote(name, safe='')}/traffic/mismatches?until={until}"
    return Call("DELETE", path, b"", _nothing, control=True)


def _noted_requests(after: int) -> Call[NotedAnswer]:
    def read(answer: RawAnswer) -> NotedAnswer:
        found: NotedAnswer = _parsed(answer.body, NotedAnswer)
        return found

    return Call("GET", f"/v2/slipway/requests?after={after}", b"", read, control=True)


def _memory() -> Call[MemoryMap]:
    def read(answer: RawAnswer) -> MemoryMap:
        found: MemoryMap = _parsed(answer.body, MemoryMap)
        return found

    return Call("GET", "/v2/slipway/memory", b"", read, control=True, of_metrics=True)


def _nothing(answer: RawAnswer) -> None:
    return None


# -- the clients -------------------------------------------------------------------------------------------------------
class _Peer:
    """The common part of both clients: the server's address and keys, and the reading of its answers."""

    def __init__(self, server: Server, person: str = "") -> None:
        self.server = server
        self._key = control_headers(server)
        self._token = bearer(server, person)
        # A server that was found by its DNS name is called by number, and must still have the name's certificate.
        self._extensions = {"sni_hostname": name} if (name := tls_name(server)) else {}

    def _request(self, client: httpx.Client | httpx.AsyncClient, call: Call[T]) -> httpx.Request:
        headers = {**_PLAIN, **(call.headers or {})}
        if call.control:
            headers |= self._key | fence_headers()
        timeout = httpx.Timeout(call.timeout, connect=CONNECT_TIMEOUT_S)
        url = f"{self.server.metrics_url if call.of_metrics else self.server.http_url}{call.path}"
        return client.build_request(
            call.method, url, content=call.content, headers=headers, timeout=timeout, extensions=self._extensions
        )

    def _result(self, call: Call[T], response: httpx.Response, content: bytes) -> T:
        if call.any_status or response.is_success:
            return call.read(RawAnswer(response.status_code, dict(response.headers), content))
        raise _refusal(self.server.name, response.status_code, content)

    def _refuse_compressed(self, response: httpx.Response) -> None:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refused(f"inference server {self.server.name} answers compressed, although it was asked not to")

    def _refuse_larger(self, call: Call[T], size: int, began: float) -> None:
        if call.limit is not None and size > call.limit:
            raise Refused(f"inference server {self.server.name} answered with more than {call.limit >> 20} MiB")
        if call.limit is not None and time.monotonic() - began > WHOLE_S:
            raise Unreachable(f"inference server {self.server.name} does not answer: its answer never ends")

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        reasons = {
            httpx.ConnectError: _no_connection(error),
            httpx.ConnectTimeout: "it takes no connections",
            httpx.ReadTimeout: "it did not answer in time",
        }
        reason = next((text for kind, text in reasons.items() if isinstance(error, kind)), "the connection was lost")
        midway = isinstance(error, httpx.ReadError | httpx.RemoteProtocolError)
        return Unreachable(f"inference server {self.server.name} does not answer: {reason}", midway=midway)


def _no_connection(error: httpx.HTTPError) -> str:
    """Return why a connection could not be made."""
    text = str(error)
    if "certificate" in text.lower():
        return f"its certificate is refused ({text.partition('certificate verify failed: ')[2] or text})"
    return "it does not speak TLS as it should" if "SSL" in text else "nothing listens at its address"


class ServerConnections:
    """HTTP connections that stay open between calls, for several threads and servers. The first call makes a client, and the
    first call with other certificates another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[object, httpx.Client] = {}

    def client(self, server: Server) -> httpx.Client:
        environment = None if server.bundled else server.environment
        with self._lock:
            key = environment and environment.connection
            if key not in self._clients:
                # The environment's proxies are not meant for inference servers.
                client = httpx.Client(trust_env=False, follow_redirects=False, verify=tls_context(server))
                atexit.register(client.close)
                self._clients[key] = client
            return self._clients[key]


class ServerClient(_Peer):
    """A blocking client; safe to use from several threads. person: for whom its inference requests count."""

    def __init__(self, server: Server, connections: ServerConnections, person: str = "") -> None:
        super().__init__(server, person)
        self._connections = connections

    def infer_raw(self, name: str, body: bytes, headers: Mapping[str, str], version: str = "") -> RawAnswer:
        """Send an inference request unchanged, and return the server's answer or refusal."""
        return self._call(_infer(name, body, {**headers, **self._token}, version))

    def sample(self, name: str, count: int, seconds: float) -> TrafficSamples:
        """Return the next `count` client requests to a model, with their answers. After `seconds`, return those so far."""
        return self._call(_sample(name, count, seconds))

    def statistics(self, name: str, version: str) -> JsonObject:
        """Return the cumulative statistics of a version, as Triton names them."""
        return self._call(_statistics(name, version))

    def metadata(self) -> ServerMetadata:
        """Return what the server says of itself."""
        return self._call(_metadata())

    def index(self) -> list[IndexRow]:
        """Return a row for every version in the repository, and one for each model without versions."""
        return self._call(_index())

    def unload(self, name: str) -> None:
        self._call(_unload(name))

    def memory(self) -> MemoryMap:
        """Return the memory of the server's devices, and what each version holds of it."""
        return self._call(_memory())

    def _call(self, call: Call[T]) -> T:
        client = self._connections.client(self.server)
        try:
            response = client.send(self._request(client, call), stream=True)
            with closing(response):
                self._refuse_compressed(response)
                content, began = bytearray(), time.monotonic()
                for piece in response.iter_bytes():
                    content += piece
                    self._refuse_larger(call, len(content), began)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return self._result(call, response, bytes(content))


class AsyncServerClient(_Peer):
    """A client of one event loop, used as `async with AsyncServerClient(server) as client`."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._client = httpx.AsyncClient(trust_env=False, follow_redirects=False, verify=tls_context(server))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def version(self) -> str:
        """Return the server's version from its metadata."""
        return (await self._call(_metadata()))["version"]

    async def index(self) -> list[IndexRow]:
        """Return a row for every version in the repository."""
        return await self._call(_index())

    async def load(self, name: str, config: str = "", golden: str = "") -> LoadAnswer:
        """Load a model, and return when it is ready; if nothing has changed, the server does nothing.

        config: a configuration as JSON in place of the file (Triton's load parameter of that name). golden: the requests, as
        JSON, that the model must answer correctly before it serves. The error of a failed load has its steps (steps_of).
        """
        return await self._call(_load(name, config, golden))

    async def break_off_load(self, name: str) -> None:
        """Break off a load that is under way, at a step that may hang."""
        await self._call(_break_off(name))

    async def unload(self, name: str) -> None:
        """Unload a model; the server finishes requests under way first."""
        await self._call(_unload(name))

    async def infer_raw(self, name: str, body: bytes, headers: Mapping[str, str], version: str = "") -> RawAnswer:
        """Send an inference request unchanged, and return the server's answer or refusal."""
        return await self._call(_infer(name, body, {**headers, **self._token}, version))

    async def traffic(self, name: str) -> TrafficReport | None:
        """Return the server's report of a model's rollout, or None if the model has no rollout."""
        return await self._call(_traffic(name))

    async def mismatches(self, name: str, after: int) -> list[Mismatch]:
        """Return the mismatches of a model's rollout that the server keeps and whose numbers are above `after`."""
        return await self._call(_mismatches(name, after))

    async def forget_mismatches(self, name: str, until: float) -> None:
        """Delete the mismatches that were found up to `until`, in Unix seconds."""
        await self._call(_forget_mismatches(name, until))

    async def noted_requests(self, after: int) -> NotedAnswer:
        """Return the slowest and the failed requests of spans with numbers above `after`."""
        return await self._call(_noted_requests(after))

    async def _call(self, call: Call[T]) -> T:
        try:
            response = await self._client.send(self._request(self._client, call), stream=True)
            async with aclosing(response):
                self._refuse_compressed(response)
                content, began = bytearray(), time.monotonic()
                async for piece in response.aiter_bytes():
                    content += piece
                    self._refuse_larger(call, len(content), began)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        return self._result(call, response, bytes(content))

    async def feed(self) -> AsyncGenerator[FeedEvent, None]:
        """Yield the events of the live feed.

        Raises Unreachable if the server ends the feed, or sends no whole event in time.
        """
        timeout = httpx.Timeout(FEED_SILENCE_S, connect=CONNECT_TIMEOUT_S)
        url = f"{self.server.metrics_url}/v2/slipway/live"
        headers = {**_PLAIN, **self._key}
        try:
            streamed = self._client.stream("GET", url, headers=headers, timeout=timeout, extensions=self._extensions)
            async with streamed as response:
                if not response.is_success:
                    raise _refusal(self.server.name, response.status_code, b"")
                self._refuse_compressed(response)
                events = _server_sent_events(_lines(response.aiter_raw()))
                within = FIRST_EVENT_S
                while (event := await _next_event(events, within)) is not None:
                    kind, data = event
                    if kind == "hello":
                        yield HelloEvent(_parsed(data, Hello))
                    elif kind == "stats":
                        within = FEED_SILENCE_S
                        yield StatsEvent(_parsed(data, Stats))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        except TimeoutError:
            raise Unreachable(
                f"inference server {self.server.name} does not answer: its feed has no whole event"
            ) from None
        raise Unreachable(f"inference server {self.server.name} does not answer: its feed ended", midway=True)


def _parsed(content: bytes, shape: Any) -> Any:
    """Return an answer's JSON. Raises Refused if the answer does not fit the shape (json_shape.misfit)."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise Refused("the inference server's answer is not JSON") from None
    try:
        wrong = misfit(value, shape)
    except RecursionError:
        wrong = HERE
    if wrong:
        raise Refused(f"the inference server's answer is not understood, at {plain(wrong)[:_SHOWN]}")
    return value


def _refusal(server: str, status: int, content: bytes) -> DashboardError:
    """Return the error of an unsuccessful answer, with the server's message."""
    try:
        body: RefusalBody = _parsed(content, RefusalBody)
        message = body.get("reason") or body["error"]  # pages name the model themselves, so the reason is enough
    except Refused:
        return _REFUSALS.get(status, Refused)(f"inference server {server} answered with status {status}")
    error = _REFUSALS.get(status, Refused)(plain(message[:MESSAGE_LIMIT]))
    error.details = cast(Mapping[str, object], body)
    return error


def steps_of(error: DashboardError) -> list[CheckStep]:
    """Return the steps of a refused load, as the server reported them; [] if the server reported no steps."""
    steps = error.details.get("steps", [])
    return [] if misfit(steps, list[CheckStep]) else cast(list[CheckStep], steps)


def release_of(error: DashboardError) -> int | None:
    """Return the release of a refused load, as the server read it, or None if the server reported no release."""
    release = error.details.get("release")
    return None if misfit(release, int) else cast(int, release)


async def _next_event(events: AsyncIterator[tuple[str, bytes]], within: float) -> tuple[str, bytes] | None:
    """Return the next event, None at the end. Raises TimeoutError if no whole event arrives in time, even if some bytes do."""
    async with asyncio.timeout(within):
        return await anext(events, None)


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a stream without their ends. Raises Refused if a line is longer than EVENT_BYTES."""
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            for line in whole:
                yield line.removesuffix(b"\r").decode(errors="replace")
        _refuse_larger_event(len(rest))


async def _server_sent_events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, bytes]]:
    """Yield the kind and the data of each event (WHATWG HTML, 9.2.6); comments and other fields are skipped."""
    kind = "message"
    data: list[str] = []
    size = 0
    async for line in lines:
        if not line:
            if data:
                yield kind, "\n".join(data).encode()
            kind, data, size = "message", [], 0
            continue
        _refuse_larger_event(size := size + len(line) + LINE_COST)
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            data.append(value)


def _refuse_larger_event(size: int) -> None:
    if size > EVENT_BYTES:
        raise Refused(f"the inference server's feed is not understood: an event of more than {EVENT_BYTES >> 20} MiB")

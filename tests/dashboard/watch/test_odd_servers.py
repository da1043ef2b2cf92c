"""What a watched server tells is parsed at the door: one that tells nonsense is said to, and the others are watched on."""

import asyncio
import gzip
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import InterfaceError
from django.test import Client

from dashboard.metrics.feed import FeedReader, follow_feed
from dashboard.metrics.services import metrics_store_tick
from dashboard.metrics.usage import figures
from dashboard.models import Model, ModelState, Server, ServerState
from dashboard.servers import client as server_client
from dashboard.servers.client import AsyncServerClient, ServerClient, ServerConnections
from dashboard.shared.choices import DesiredState, ServerStatus
from dashboard.shared.exceptions import DashboardError
from dashboard.watch import watcher
from dashboard.watch.together import Together
from repository.core.histogram import BOUNDS_US
from tests.dashboard.conftest import text_of
from tests.dashboard.processes import FixedServer, fixed_server
from tests.dashboard.watch.watching import nothing, watching
from tests.support import model_factory

pytestmark = [pytest.mark.django_db]

GOOD = {"name": "m", "version": "1", "state": "READY", "reason": ""}
ODD: tuple[Any, ...] = (
    *({"9999": 5}, {"-1": 5}, {"3": -5}),
    *(None, True, 0, -1, 1 << 70, 1.5, "", "v1", "1\u202e", "-1", "01", "9" * 30, "\0", "x" * 5000, [], {}, [[]]),
    *({"a": None}, [None], [1], "READY", "ready"),
)
INDEXES = (
    *ODD,
    *([{**GOOD, field: value}] for field in (*GOOD, "condition", "failed", "release", "loading") for value in ODD),
)
HELLO = {"server_id": "s", "instance": "i", "started": 1.0, "bounds_us": [1, 2, 4]}
COUNT = {"count": 0, "ns": 0}
LATENCY: dict[str, Any] = {"total": 0, "sum_ns": 0, "counts": {}}
COUNTERS: dict[str, Any] = {
    "name": "m",
    "version": "1",
    "state": "READY",
    "pending": 0,
    "in_flight": 0,
    **dict.fromkeys(("success", "fail", "cancel", "queue", "compute_input", "compute_infer", "compute_output"), COUNT),
    "inference_count": 0,
    "execution_count": 0,
    "failures": {},
    "cache_hits": 0,
    "cache_misses": 0,
    "batches": {},
    **dict.fromkeys(("request_latency", "queue_latency", "compute_latency"), LATENCY),
}
STATS: dict[str, Any] = {
    "time": 1.0,
    "server": {"rss_bytes": 1, "cpu_seconds": 0.0, "threads": 1, "gpus": []},
    "models": [COUNTERS],
    "unserved": {"m": 1},
    "traffic": [{"model": "m", "rollout": "r"}],
}


class OddServer(ThreadingHTTPServer):
    """A server that gives the same answer to every request."""

    daemon_threads = True
    status = 200
    body = b"[]"
    encoding = ""
    stream: Iterable[bytes] | None = None  # in place of events and of bodies: pieces until whoever reads has gone
    events: tuple[tuple[str, object], ...] = ()

    def row(self, name: str = "odd") -> Server:
        url = f"http://127.0.0.1:{self.server_address[1]}"
        row = Server.objects.create(name=name, http_url=url, grpc_url="", metrics_url=url)
        ServerState.objects.create(server=row, state=ServerStatus.READY)
        return row


class _Handler(BaseHTTPRequestHandler):
    server: OddServer

    def do_GET(self) -> None:
        events = self.server.events
        if self.server.stream is not None:
            self._stream(self.server.stream)
            return
        if "live" not in self.path or not events:
            self._answer(self.server.status, self.server.body)
            return
        self._answer(200, "".join(f"event: {kind}\ndata: {json.dumps(data)}\n\n" for kind, data in events).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.stream is not None:
            self._stream(self.server.stream)
            return
        self._answer(self.server.status, self.server.body)

    def _stream(self, pieces: Iterable[bytes]) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()
        self.close_connection = True

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.server.encoding:
            self.send_header("Content-Encoding", self.server.encoding)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *given: object) -> None:
        pass


@pytest.fixture
def odd() -> Iterator[OddServer]:
    server = OddServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def inference(tmp_path: Path) -> Iterator[FixedServer]:
    with fixed_server(tmp_path / "models") as server:
        yield server


def changed(value: Any, chance: random.Random) -> Any:
    """A value of which one part, somewhere in it, is another one."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(sorted(value))
        return {**value, name: changed(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        return [changed(value[0], chance), *value[1:]]
    return chance.choice(ODD)


async def reported(call: Callable[[AsyncServerClient], Any], server: Server) -> None:
    """Ask; a DashboardError with one sentence is all that may be raised."""
    async with AsyncServerClient(server) as client:
        try:
            await call(client)
            return
        except DashboardError as error:
            sentence = error.message
    assert sentence.isprintable()
    assert 0 < len(sentence) < 6000


@pytest.mark.parametrize("status", [200, 400, 503])
def test_every_answer_of_a_server_is_a_result_or_one_sentence(odd: OddServer, status: int) -> None:
    row, chance = odd.row(), random.Random(status)
    bodies = [json.dumps(index).encode() for index in INDEXES] + [b"", b"{", b"\xff", b"[" * 50_000, b"NaN"]
    bodies.append(b'{"error": "\\u001b[2J\\u202eon"}')
    odd.status = status
    calls: tuple[Callable[[AsyncServerClient], Any], ...] = (
        lambda client: client.index(),
        lambda client: client.load("m"),
        lambda client: client.traffic("m"),
        lambda client: client.mismatches("m", 0),
    )
    for body in bodies:
        odd.body = body
        asyncio.run(reported(chance.choice(calls) if status != 200 else calls[0], row))
        if status == 200:
            asyncio.run(reported(chance.choice(calls[1:]), row))


def test_an_index_whose_version_is_no_number_is_reported_of_that_server_alone(
    odd: OddServer, inference: FixedServer, tmp_path: Path
) -> None:
    """Both sides run: a good server and odd ones, watched by the same program."""
    model_factory.onnx_identity(tmp_path / "models", "wanted")
    Model.objects.create(name="wanted", desired_state=DesiredState.LOADED, generation=1)
    wrong = odd.row()
    odd.body = json.dumps([{**GOOD, "version": "v1"}]).encode()
    odd.events = (("hello", HELLO), ("stats", {**STATS, "time": "now"}))
    inference.row()
    inference.start()

    def both_known() -> bool:
        state = ServerState.objects.get(server=wrong)
        ready = ModelState.objects.filter(model_name="wanted", state="READY").exists()
        return ready and state.state == ServerStatus.DOWN and "version 'v1'" in state.last_reason

    watching((nothing, both_known))
    assert not ModelState.objects.filter(server=wrong).exists()


def test_a_server_that_ends_its_own_tasks_ends_no_others(
    odd: OddServer, inference: FixedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_factory.onnx_identity(tmp_path / "models", "wanted")
    Model.objects.create(name="wanted", desired_state=DesiredState.LOADED, generation=1)
    wrong = odd.row()
    watch_as_ever = watcher.watch_server

    async def broken(server: Server, together: Together) -> None:
        if server.pk == wrong.pk:
            raise ZeroDivisionError
        await watch_as_ever(server, together)

    lose_as_ever, failures = watcher.server_state.server_lost, [InterfaceError("connection already closed")]

    def lose(**said: Any) -> None:
        if failures:
            raise failures.pop()
        lose_as_ever(**said)

    monkeypatch.setattr(watcher, "watch_server", broken)
    monkeypatch.setattr(watcher.server_state, "server_lost", lose)
    monkeypatch.setattr(watcher, "SERVERS_S", 0.1)
    inference.row()
    inference.start()

    def known() -> bool:
        ready = ModelState.objects.filter(model_name="wanted", state="READY").exists()
        return ready and ServerState.objects.get(server=wrong).state == ServerStatus.DOWN

    watching((nothing, known))
    assert "ZeroDivisionError" in ServerState.objects.get(server=wrong).last_reason


def test_a_server_with_an_odd_feed_is_watched_on(odd: OddServer) -> None:
    """Each event of a feed with one part of it changed: the collector reads on, or says in one sentence why it cannot."""
    row, chance = odd.row(), random.Random(5)

    async def listen() -> None:
        async with AsyncServerClient(row) as client:
            news = follow_feed(client, FeedReader())
            async for one in news:
                if isinstance(one, DashboardError):
                    assert "\n" not in one.message
                    break
                await sync_to_async(metrics_store_tick)(row, one, int(one.time), 0)
                json.dumps([figures(usage, one.seconds) for usage in one.models.values()])
            await news.aclose()

    for _ in range(300):
        ours = {**HELLO, "bounds_us": BOUNDS_US} if chance.random() < 0.5 else HELLO
        hello = changed(ours, chance) if chance.random() < 0.3 else ours
        odd.events = (("hello", hello), ("stats", STATS), ("stats", changed({**STATS, "time": 2.0}, chance)))
        async_to_sync(listen)()


def test_failures_one_after_the_other_are_tried_again_later_and_those_far_apart_soon(
    odd: OddServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lasts, pauses = [0.0], iter([0.0, 0.0, 3600.0, 3600.0]), []

    async def broken(_server: Server, _together: Together) -> None:
        now[0] += next(lasts)
        raise ZeroDivisionError

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(watcher, "watch_server", broken)
    monkeypatch.setattr(watcher, "monotonic", lambda: now[0])
    monkeypatch.setattr(watcher.asyncio, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(watcher.keep_watching(odd.row(), Together()))
    assert pauses == [watcher.SERVERS_S * factor for factor in (1, 2, 1, 1)]


def test_a_feed_that_is_not_understood_is_said_on_the_page_and_once_in_the_log(
    odd: OddServer, as_person: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    row = odd.row()
    odd.body = b"[]"
    odd.events = (("hello", HELLO), ("stats", {**STATS, "time": "now"}))
    caplog.set_level("WARNING")
    watching((nothing, lambda: bool(ServerState.objects.get(server=row).info.get("feed"))))
    warnings = [one for one in caplog.records if "what it streams" in one.getMessage()]
    assert [one.levelname for one in warnings] == ["WARNING"]
    page = text_of(as_person(), "/servers/")
    assert page.count("This server gives no metrics") == 1
    assert "is not understood, at" in page
    odd.events = (("hello", HELLO), *(("stats", {**STATS, "time": float(at)}) for at in (1, 2, 3)))
    watching((nothing, lambda: ServerState.objects.get(server=row).info.get("feed") == ""))
    assert "This server gives no metrics" not in text_of(as_person(), "/servers/")


def test_what_is_compressed_is_never_opened(odd: OddServer) -> None:
    """A few bytes would become gigabytes in one piece, before anything is counted."""
    row = odd.row()
    odd.body, odd.encoding = gzip.compress(gzip.compress(b"[]")), "gzip, gzip"

    async def ask() -> None:
        async with AsyncServerClient(row) as client:
            with pytest.raises(DashboardError, match="answers compressed"):
                await client.index()
            with pytest.raises(DashboardError, match="answers compressed"):
                await anext(client.feed())

    asyncio.run(ask())
    with pytest.raises(DashboardError, match="answers compressed"):
        ServerClient(row, ServerConnections()).infer_raw("m", b"", {})


def test_of_a_reason_without_end_its_beginning_is_kept(odd: OddServer) -> None:
    """Each try to load would write it into the database, and pages show it."""
    row, long = odd.row(), "x" * (1 << 20)

    async def ask() -> None:
        async with AsyncServerClient(row) as client:
            odd.body = json.dumps([{**GOOD, "reason": long}]).encode()
            assert [len(one["reason"]) for one in await client.index()] == [server_client.MESSAGE_LIMIT]
            odd.status, odd.body = 400, json.dumps({"error": long}).encode()
            with pytest.raises(DashboardError) as raised:
                await client.load("m")
            assert len(raised.value.message) == server_client.MESSAGE_LIMIT

    asyncio.run(ask())


@pytest.mark.parametrize("line", [b"data: " + b"x" * 1000 + b"\n", b"data:\n" * 200, b"x" * 1000])
def test_an_event_of_a_feed_that_never_ends_is_refused(
    odd: OddServer, line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = odd.row()
    odd.stream = itertools.repeat(line)
    monkeypatch.setattr(server_client, "EVENT_BYTES", 1 << 20)

    async def ask() -> None:
        async with AsyncServerClient(row) as client:
            with pytest.raises(DashboardError, match="an event of more than 1 MiB"):
                await anext(client.feed())

    asyncio.run(ask())


def test_what_comes_byte_by_byte_for_ever_is_no_answer(odd: OddServer, monkeypatch: pytest.MonkeyPatch) -> None:
    row = odd.row()
    monkeypatch.setattr(server_client, "WHOLE_S", 1.5)
    monkeypatch.setattr(server_client, "FIRST_EVENT_S", 1.5)

    def drip() -> Iterator[bytes]:
        while True:
            yield b" "
            time.sleep(0.02)

    async def ask() -> None:
        async with AsyncServerClient(row) as client:
            odd.stream = drip()
            with pytest.raises(DashboardError, match="its answer never ends"):
                await client.index()
            odd.stream = drip()
            with pytest.raises(DashboardError, match="no whole event"):
                await anext(client.feed())

    asyncio.run(ask())

"""Bytes after a request that is still being answered are bounded: memory and other clients are spared."""

import asyncio
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.frontends.http1.connection import MAX_PIPELINED, Connection, Connections
from serving.frontends.http1.context import Context
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.shared.authorisation import Authoriser
from serving.resources.request_memory import RequestMemory
from tests.e2e.gated_model import GatedModel
from tests.serving.frontends.raw_http import RawClient, build, infer_body, tensor
from tests.support.serving_process import ServerProcess

pytestmark = pytest.mark.long
MB = 1 << 20
ENDLESS = 64 * MB  # the kernel's buffers of a connection hold less
KEPT = 24 * MB  # with what the server needs itself
STUCK_S = 2.0  # without room in the socket
SLOW = infer_body(tensor([1.0]))
PATH = "/v2/models/gated/infer"


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "workers"])
def gated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, GatedModel]]:
    folder: Path = tmp_path_factory.mktemp("behind")
    model = GatedModel(folder / "models", folder)
    with ServerProcess(folder / "models", f"--frontend-workers={request.param}") as server:
        yield server, model


def taken(client: RawClient, piece: bytes, most: int = ENDLESS) -> int:
    """Send without end; return the bytes after which the server took no more, or `most`."""
    client.socket.setblocking(False)
    sent, since = 0, time.monotonic()
    try:
        while sent < most and time.monotonic() - since < STUCK_S:
            if select.select([], [client.socket], [], STUCK_S)[1]:
                sent += client.socket.send(piece)
                since = time.monotonic()
    finally:
        client.socket.settimeout(60)
    return sent


def last_request(**headers: str) -> bytes:
    return build("POST", PATH, SLOW, **headers)


BEGINNINGS: dict[str, Callable[[], bytes]] = {
    "the last request": lambda: last_request(Connection="close"),
    "a request that is refused behind one that answers": lambda: (
        last_request() + b"POST /v2 HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"
    ),
    "as many requests as may be under way": lambda: last_request() * 40,
}


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_bytes_after_a_request_that_is_being_answered_wait_unread(
    gated: tuple[ServerProcess, GatedModel], beginning: str
) -> None:
    server, model = gated
    model.shut()
    assert server.get("/v2/health/live")[0] == 200
    before = server.memory("RssAnon")
    with RawClient(server.http) as client:
        client.send(BEGINNINGS[beginning]())
        model.wait_for("")
        assert taken(client, b"x" * MB) < ENDLESS
        assert server.memory("RssAnon") - before < KEPT
        model.open()
        assert client.answer().status == 200, "the answer is not lost"


def test_bytes_after_the_request_of_the_live_feed_wait_unread(gated: tuple[ServerProcess, GatedModel]) -> None:
    server, _ = gated
    before = server.memory("RssAnon")
    with RawClient(server.metrics) as client:
        client.send(b"GET /v2/slipway/live HTTP/1.0\r\nConnection: close\r\n\r\n")
        assert b"200" in client.file.readline()
        assert taken(client, b"x" * MB) < ENDLESS
        assert server.memory("RssAnon") - before < KEPT


def test_a_last_request_with_a_few_bytes_after_it_is_answered(gated: tuple[ServerProcess, GatedModel]) -> None:
    server, _ = gated
    with RawClient(server.http) as client:
        client.send(build("GET", "/v2/health/live", Connection="close") + b"\r\n" + bytes(100))
        assert client.answer().status == 200
        assert client.closed()


def test_requests_that_wait_are_counted_in_the_memory_for_requests(tmp_path: Path) -> None:
    model = GatedModel(tmp_path / "models", tmp_path)
    with ServerProcess(tmp_path / "models", "--request-memory-limit=8192") as server, RawClient(server.http) as client:
        client.send(last_request() * 200)
        model.wait_for("")
        model.open()
        assert [client.answer().status for _ in range(33)] == [200] * 32 + [503]
        assert client.closed()
        assert server.get("/v2/health/live")[0] == 200


def test_the_last_answers_of_a_server_that_ends_arrive_though_more_was_asked() -> None:
    connections = Connections()
    exchanges: list[Exchange] = []
    route = Route("GET", "/", "", lambda _, exchange: exchanges.append(exchange))
    context, routes = Context(Authoriser((), "", None), RequestMemory()), RouteTable((route,), None, 0)

    async def run() -> bytes:
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: Connection(context, routes, connections), ours)
        reader, writer = await asyncio.open_unix_connection(sock=theirs)
        writer.write(b"GET / HTTP/1.1\r\n\r\n" * 8000)  # more than is read at once
        while len(exchanges) < MAX_PIPELINED:
            await asyncio.sleep(0)
        connections.drain()
        for exchange in exchanges:
            exchange.reply(Reply(204))
        answers = await reader.read(-1)
        writer.close()
        await connections.all_closed()
        return answers

    assert asyncio.run(run()).count(b"HTTP/1.1 204") == MAX_PIPELINED

"""Which connections are closed when descriptors run short, and how often the server checks."""

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from serving.frontends.http1.connection import Connection, Connections
from serving.frontends.http1.context import Context
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.shared import open_connections
from serving.frontends.shared.authorisation import Authoriser
from serving.resources.request_memory import RequestMemory

ROUTE = Route("POST", "/", "", lambda _, exchange: None, large=True)


class Open:
    def __init__(self, idle_s: float | None) -> None:
        self._idle_s = idle_s
        self.is_closed = False

    def idle_s(self) -> float | None:
        return self._idle_s

    def close_idle(self) -> None:
        self.is_closed = True


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Open]], list[float]]:
    """Look at the descriptors, of which files of others have too many; return after how many seconds the next look is due."""

    def taken(connections: list[Open]) -> list[float]:
        async def run() -> list[float]:
            delays: list[float] = []
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "call_later", lambda delay, _: delays.append(delay))
            open_connections._look()
            return delays

        monkeypatch.setattr(open_connections, "_open", dict.fromkeys(connections))
        return asyncio.run(run())

    monkeypatch.setattr(open_connections, "_limit", lambda: 256)
    monkeypatch.setattr(open_connections, "os", SimpleNamespace(listdir=lambda _: range(250)))
    monkeypatch.setattr(open_connections._Look, "due", float("-inf"))
    return taken


def test_where_all_are_busy_the_next_look_is_a_while_away(look: Callable[[list[Open]], list[float]]) -> None:
    (delay,) = look([Open(None) for _ in range(20)])
    assert delay >= 0.1


def test_where_no_connection_is_left_nothing_is_looked_at(look: Callable[[list[Open]], list[float]]) -> None:
    assert look([]) == []


def test_the_idlest_are_closed_and_waiting_ones_are_accepted_soon(
    look: Callable[[list[Open]], list[float]],
) -> None:
    busy, idle = [Open(None) for _ in range(5)], [Open(float(number)) for number in range(40)]
    (delay,) = look(busy + idle)
    assert delay < 0.01
    assert [one.is_closed for one in idle] == [False] * 14 + [True] * 26  # 250 are open, and clients may have 224
    assert not any(one.is_closed for one in busy)


def test_a_new_connection_is_not_idler_than_old_ones_whose_protocol_counts_whole_seconds(
    look: Callable[[list[Open]], list[float]],
) -> None:
    old, new = [Open(0.0) for _ in range(26)], Open(0.1)
    look([*old, new])
    assert all(one.is_closed for one in old)
    assert not new.is_closed


def test_a_client_that_does_not_read_is_idle_and_closed_at_once() -> None:
    connections = Connections()
    exchanges: list[Exchange] = []
    route = Route("POST", "/", "", lambda _, exchange: exchanges.append(exchange))
    connection = Connection(
        Context(Authoriser((), "", None), RequestMemory()), RouteTable((route,), None, 0), connections
    )

    async def run() -> tuple[float | None, float | None]:
        ours, theirs = socket.socketpair()
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
        request = b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"
        connection.get_buffer(-1)[: len(request)] = request
        connection.buffer_updated(len(request))
        exchanges[0].start_stream("text/plain")
        busy = connection.idle_s()
        exchanges[0].write(bytes(8 << 20))
        connections.tick += 20
        idle = connection.idle_s()
        connection.close_idle()
        await connections.all_closed()
        theirs.close()
        return busy, idle

    assert asyncio.run(run()) == (None, 20.0)


@pytest.mark.parametrize(("received", "idle_s"), [(4 << 20, 0.0), (1000, 20.0)])
def test_a_body_that_comes_on_is_not_idle_and_one_that_drips_is(received: int, idle_s: float) -> None:
    connections = Connections()
    context = Context(Authoriser((), "", None), RequestMemory())
    connection = Connection(context, RouteTable((ROUTE,), None, 1 << 30), connections)

    async def run() -> float | None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_accepted_socket(lambda: connection, ours)
        content = b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n" + bytes(received)
        while content:
            buffer = connection.get_buffer(-1)
            count = min(len(buffer), len(content))
            buffer[:count], content = content[:count], content[count:]
            connection.buffer_updated(count)
        connections.tick += 20
        found = connection.idle_s()
        transport.abort()
        await connections.all_closed()
        theirs.close()
        return found

    assert asyncio.run(run()) == idle_s

"""A client that does not read for a while, or reads a stream that its other answers wait for; second by second."""

import asyncio
from collections.abc import Callable

import pytest

from serving.cli.options import Options
from serving.frontends.http1.connection import Connection, Connections
from serving.frontends.http1.context import Context, Limits
from serving.frontends.http1.exchange import Exchange
from serving.frontends.http1.message import Reply
from serving.frontends.http1.routes import Route, RouteTable
from serving.frontends.shared.authorisation import Authoriser
from serving.resources.request_memory import RequestMemory
from tests.serving.frontends.link import Link
from tests.serving.frontends.raw_http import build

MB = 1 << 20
LIMITS = Limits()


def stream(_: object, exchange: Exchange) -> None:
    exchange.start_stream("text/event-stream")
    exchange.write(b"data: 1\n\n")


ROUTES = (
    Route("POST", "/echo", "inference", lambda _, exchange: Reply(200, (exchange.body,)), large=True),
    Route("GET", "/stream", "inference", stream),
    Route("GET", "/later", "inference", lambda _, exchange: None),
    Route("GET", "/large", "inference", lambda _, exchange: Reply(200, (bytes(MB),))),
)


class Client:
    """A connection whose received bytes and clock the test drives."""

    def __init__(self) -> None:
        self.memory = RequestMemory(4 * MB)
        options = Options(model_repository=())
        self.context = Context(Authoriser.from_options(options, "http"), self.memory, LIMITS)
        self.connections = Connections()
        self.connection = Connection(self.context, RouteTable(ROUTES, None, MB), self.connections)
        self.link = Link()
        self.connection.connection_made(self.link)

    def send(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.connections.tick += 1
            self.connection.sweep(self.connections.tick)


def drive(story: Callable[[Client], None]) -> None:
    async def main() -> None:
        client = Client()
        try:
            story(client)
        finally:
            client.connection.connection_lost(None)
        assert client.memory.taken == 0

    asyncio.run(main())


def test_a_request_that_could_not_come_on_while_nothing_was_read_has_its_time_from_then_on() -> None:
    request = build("POST", "/echo", b"x" * 30_000)

    def story(client: Client) -> None:
        client.send(request[:-10_000])
        client.connection.pause_writing()  # an answer before it is not read
        client.pass_s(int(LIMITS.stalled_s) - 1)
        client.connection.resume_writing()
        client.pass_s(int(LIMITS.body_s))
        assert client.link.written == b""
        client.send(request[-10_000:])
        assert client.link.written.startswith(b"HTTP/1.1 200 ")

    drive(story)


@pytest.mark.parametrize(
    ("first", "is_short", "is_cut"), [("/stream", True, True), ("/stream", False, False), ("/later", True, False)]
)
def test_answers_that_wait_for_a_stream_make_room_where_others_need_it(
    first: str, is_short: bool, is_cut: bool
) -> None:
    def story(client: Client) -> None:
        client.send(build("GET", first) + build("GET", "/large"))
        assert client.memory.taken > MB
        if is_short:
            client.memory.exhausted()
        client.pass_s(1)
        assert client.link.is_aborted is is_cut

    drive(story)

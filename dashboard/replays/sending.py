"""Sends captured requests to a server, a few at a time, and hands over each answer as soon as it comes."""

import select
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import NamedTuple, Self
from urllib.parse import quote

from dashboard.loads.connection import CLOSED, Target
from dashboard.loads.http1_connection import HttpConnection
from dashboard.loads.load import Pool
from dashboard.loads.requests import http_request
from dashboard.models import Server
from dashboard.shared.exceptions import Unavailable

TIMEOUT_S = 60.0  # for one answer
_SLEEP_S = 0.1


class Reply(NamedTuple):
    """The answer to the request at a place. failure: why it failed; "" for an answer of status 200, which is in `answer`."""

    place: int
    failure: str
    answer: bytes


class _Asked(NamedTuple):
    place: int
    request: bytes
    again: bool  # whether the connection of an earlier try was closed


class _WholeAnswers(HttpConnection):
    """A connection that keeps the whole of the last answer."""

    kept_bytes = 1 << 62

    def __init__(self, target: Target) -> None:
        super().__init__(target, [])
        self.answer = b""
        self.asked: _Asked | None = None
        self.asked_at = 0.0

    def ask(self, asked: _Asked) -> None:
        self.asked, self.due, self.asked_at = asked, 0.0, time.monotonic()
        self.write(asked.request)

    def _end(self) -> str:
        self.answer = self._unread
        return super()._end()


class Sender:
    """Sends requests to one version over `clients` connections: `with Sender(...) as sender`."""

    def __init__(self, server: Server, model: str, version: int, headers: Mapping[str, str], clients: int) -> None:
        target = Target(server.http_url.partition("://")[2])
        self._host, self._path = target.address, f"/v2/models/{quote(model, safe='')}/versions/{version}/infer"
        self._headers, self._clients = headers, clients
        self._pool = Pool(lambda: _WholeAnswers(target), clients)
        self._under_way: set[_WholeAnswers] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def replies(self, bodies: Iterable[tuple[bytes, Mapping[str, str]]], go_on: Callable[[], None]) -> Iterator[Reply]:
        """Yield the reply to each body with its headers, in the order in which they come. go_on: called all the time; it may
        raise to end the sending. Raises Unavailable if the server takes no connections."""
        waiting = (
            _Asked(place, http_request("POST", self._path, body, {**self._headers, **headers}, self._host), False)
            for place, (body, headers) in enumerate(bodies)
        )
        with closing(waiting):
            again: list[_Asked] = []
            while True:
                while len(self._under_way) < self._clients:
                    asked = again.pop() if again else next(waiting, None)
                    if asked is None:
                        break
                    self._ask(asked)
                if not self._under_way:
                    return
                for connection in self._pool.ready(_SLEEP_S):
                    assert isinstance(connection, _WholeAnswers)
                    reply = self._serve(connection, again)
                    if reply is not None:
                        yield reply
                go_on()
                yield from self._overdue()

    def _ask(self, asked: _Asked) -> None:
        try:
            connection = self._pool.take()
        except OSError:
            raise Unavailable("the inference server takes no connections any more") from None
        assert isinstance(connection, _WholeAnswers)
        self._under_way.add(connection)
        connection.ask(asked)
        self._pool.watch(connection)

    def _serve(self, connection: _WholeAnswers, again: list[_Asked]) -> Reply | None:
        if connection.wants & select.EPOLLOUT:
            connection.write_rest()
        failure = connection.receive()
        self._pool.watch(connection)
        if failure is None:
            return None
        asked = connection.asked
        if connection.due is None or asked is None:  # the server closed an idle connection
            self._pool.drop(connection)
            return None
        self._under_way.discard(connection)
        if connection.broken:
            self._pool.drop(connection)
            if not asked.again:
                again.append(asked._replace(again=True))
                return None
            return Reply(asked.place, CLOSED, b"")
        self._pool.give_back(connection)
        return Reply(asked.place, failure, connection.answer)

    def _overdue(self) -> Iterator[Reply]:
        """Give up the requests that have waited too long."""
        now = time.monotonic()
        for connection in [one for one in self._under_way if now - one.asked_at > TIMEOUT_S]:
            self._under_way.discard(connection)
            self._pool.drop(connection)
            assert connection.asked is not None
            yield Reply(connection.asked.place, f"no answer within {TIMEOUT_S:g} s", b"")

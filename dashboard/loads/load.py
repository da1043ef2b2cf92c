"""Sends the requests of a load when they are due, over connections of its own, and counts the answers in windows."""

import gc
import select
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from dashboard.loads.arrivals import Closed, Poisson
from dashboard.loads.connection import Connection, Target
from dashboard.loads.grpc_connection import GrpcConnection
from dashboard.loads.http1_connection import HttpConnection
from dashboard.loads.outcome import Outcome, outcome
from dashboard.loads.requests import Request

PATIENCE_S = 5.0  # the time for answers after the last request was due
_LONGEST_SLEEP_S = 0.1
_NO_ANSWER = f"no answer within {PATIENCE_S:g} s after the end"


class Arrivals(Protocol):
    """When requests are due. connections: opened before the clock starts. most_connections: the limit of all."""

    connections: int
    most_connections: int

    def next_due(self, stop: float) -> float | None: ...
    def sent(self) -> None: ...
    def ended(self, now: float) -> None: ...


def closed(target: Target, requests: Sequence[Request], clients: int, seconds: float) -> Outcome:
    """Measure a closed loop of `clients` connections, for one window."""
    with load(target, requests, Closed(clients)) as running:
        return running.window(seconds)


def opened(target: Target, requests: Sequence[Request], per_second: float, seconds: float, seed: int = 0) -> Outcome:
    """Measure Poisson arrivals, with all their answers. A request without an answer `PATIENCE_S` after the end has failed."""
    with load(target, requests, Poisson(per_second, seed)) as running:
        running.window(seconds, keep=True)
        return running.finish()


@contextmanager
def load(target: Target, requests: Sequence[Request], arrivals: Arrivals) -> Iterator["Load"]:
    """Open the connections. Raises OSError if the server cannot be reached. The requests are sent in turn."""
    kind = GrpcConnection if requests[0].http2 else HttpConnection
    pool = Pool(lambda: kind(target, requests), arrivals.most_connections)
    try:
        pool.open(arrivals.connections)
        gc.disable()  # a garbage collection would look like a slow server
        yield Load(pool, arrivals)
    finally:
        gc.enable()
        pool.close()


class Load:
    """A load that runs in windows, one after the other without a pause. Only `window` and `finish` send and receive."""

    def __init__(self, pool: "Pool", arrivals: Arrivals) -> None:
        self._pool, self._arrivals = pool, arrivals
        self._latencies: list[float] = []
        self._failures: Counter[str] = Counter()
        self._number = self._under_way = 0
        self._start = time.perf_counter()
        self._window_start = self._stop = 0.0

    def window(self, seconds: float, *, keep: bool = False) -> Outcome:
        """Continue the load, and return the answers that came in this time. keep: the next outcome contains them too."""
        self._stop = stop = self._window_start + seconds
        now = self._now()
        while now < stop:
            timeout = self._send_due(now, stop)
            for connection in self._pool.ready(min(timeout, stop - now)):
                self._serve(connection)
            now = self._now()
        found = outcome(self._latencies, now - self._window_start, self._failures)
        if not keep:
            self._window_start = now
            self._latencies, self._failures = [], Counter()
        return found

    def finish(self) -> Outcome:
        """Send requests that were due in the last window, and wait for all answers, up to `PATIENCE_S`."""
        now = self._now()
        end = now + PATIENCE_S
        while now < end and (self._under_way or self._arrivals.next_due(self._stop) is not None):
            timeout = self._send_due(now, self._stop)
            for connection in self._pool.ready(timeout):
                self._serve(connection)
            now = self._now()
        unanswered = self._under_way
        while self._arrivals.next_due(self._stop) is not None:
            self._arrivals.sent()
            unanswered += 1
        if unanswered:
            self._failures[_NO_ANSWER] += unanswered
        return outcome(self._latencies, now - self._window_start, self._failures)

    def _now(self) -> float:
        return time.perf_counter() - self._start

    def _send_due(self, now: float, stop: float) -> float:
        """Send each request that is due. Return the seconds until the next request is due."""
        while (due := self._arrivals.next_due(stop)) is not None:
            if due > now:
                return min(due - now, _LONGEST_SLEEP_S)
            connection = self._pool.take()
            if connection is None:
                break
            self._arrivals.sent()
            connection.due = due
            connection.send(self._number)
            self._pool.watch(connection)
            self._number += 1
            self._under_way += 1
        return _LONGEST_SLEEP_S

    def _serve(self, connection: Connection) -> None:
        if connection.wants & select.EPOLLOUT:
            connection.write_rest()
        reason, due = connection.receive(), connection.due
        self._pool.watch(connection)
        if reason is None:
            return
        if due is not None:
            self._under_way -= 1
            now = self._now()
            self._arrivals.ended(now)
            if reason:
                self._failures[reason] += 1
            else:
                self._latencies.append(now - due)
        if connection.broken or due is None:
            self._pool.drop(connection)
        else:
            self._pool.give_back(connection)


class Pool:
    """The connections, and which of them are free. `take` returns the connection that has been free longest."""

    def __init__(self, make: Callable[[], Connection], most: int) -> None:
        self._make, self._most = make, most
        self._all: dict[int, Connection] = {}
        self._watched: dict[int, int] = {}
        self._free: deque[Connection] = deque()
        self._epoll = select.epoll()

    def open(self, count: int) -> None:
        for _ in range(count):
            self._free.append(self._open())

    def close(self) -> None:
        self._epoll.close()
        for connection in self._all.values():
            connection.socket.close()

    def take(self) -> Connection | None:
        """Return a free connection, or a new one; None if all are busy and no more are allowed."""
        if self._free:
            return self._free.popleft()
        return self._open() if len(self._all) < self._most else None

    def give_back(self, connection: Connection) -> None:
        connection.due = None
        self._free.append(connection)

    def drop(self, connection: Connection) -> None:
        """Forget a connection that failed."""
        if connection.due is None:
            self._free.remove(connection)
        number = connection.socket.fileno()
        del self._all[number], self._watched[number]
        connection.socket.close()

    def watch(self, connection: Connection) -> None:
        """Wait for the events that a connection wants now."""
        number = connection.socket.fileno()
        if self._watched[number] != connection.wants:
            self._epoll.modify(number, connection.wants)
            self._watched[number] = connection.wants

    def ready(self, timeout_s: float) -> list[Connection]:
        """Wait for events. Return the connections that have some.

        A short wait is a `select` on epoll's descriptor, because the timeout of epoll itself has a resolution of milliseconds.
        """
        if timeout_s < _LONGEST_SLEEP_S and not select.select([self._epoll], [], [], max(timeout_s, 0.0))[0]:
            return []
        return [self._all[number] for number, _ in self._epoll.poll(timeout_s) if number in self._all]

    def _open(self) -> Connection:
        connection = self._make()
        number = connection.socket.fileno()
        self._all[number] = connection
        self._watched[number] = connection.wants
        self._epoll.register(number, connection.wants)
        return connection

"""An open loop: requests are sent at the times of a Poisson process, whether or not earlier requests were answered.

The latency of a request counts from its scheduled time, so it includes the wait for a free connection, as for a user. A closed
loop does not measure these waits.
"""

import gc
import random
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.loads.http2_client import DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, Http2Client, frame
from benchmarks.loads.outcome import Outcome, outcome
from benchmarks.loads.requests import Request, http_request

FIRST_CONNECTIONS = 64  # the connections that are opened before the clock starts
MOST_CONNECTIONS = 512  # if all are busy, a request waits for the next free connection
PATIENCE_S = 5.0  # the timeout for answers, from the scheduled time of the last request
_LONGEST_SLEEP_S = 0.1


def schedule(per_second: float, seconds: float, seed: int = 0) -> list[float]:
    """Return the times of a Poisson process with this rate, in seconds from its start."""
    source = random.Random(seed)
    moments = []
    moment = source.expovariate(per_second)
    while moment < seconds:
        moments.append(moment)
        moment += source.expovariate(per_second)
    return moments


class Connection:
    """A connection with at most one request in flight. due: the scheduled time of that request; None for a free connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.due: float | None = None

    def send(self) -> None:
        raise NotImplementedError

    def feed(self, data: bytes) -> bool | None:
        """Process received bytes. Return whether the answer is a success; None if the answer is not complete."""
        raise NotImplementedError

    def receive(self) -> bool | None:
        """Read the received bytes. Return the result of `feed`, or False if the server has closed the connection."""
        try:
            data = self.socket.recv(1 << 18)
        except OSError:
            data = b""
        return self.feed(data) if data else False


class HttpConnection(Connection):
    """A connection that speaks HTTP/1.1 with keep-alive."""

    def __init__(self, address: str, request: Request) -> None:
        super().__init__(address)
        self._request = http_request("POST", request.path, request.body, request.headers)
        self._unread = b""

    def send(self) -> None:
        self.socket.sendall(self._request)

    def feed(self, data: bytes) -> bool | None:
        self._unread = data = self._unread + data
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = data[:end].lower()
        _, named, value = head.partition(b"content-length:")
        last_chunk = b"\r\n0\r\n\r\n"
        if not (len(data) >= end + 4 + int(value.partition(b"\r\n")[0]) if named else data.endswith(last_chunk)):
            return None
        self._unread = b""
        return data.startswith(b"HTTP/1.1 200")


class GrpcConnection(Connection, Http2Client):
    """A connection for unary calls, one after the other, each on a new stream."""

    def __init__(self, address: str, request: Request) -> None:
        super().__init__(address)
        self._method = request.path.rpartition("/")[2]
        self._body = request.body
        if len(self._body) > 16_384:
            raise ValueError(f"the message is {len(self._body)} bytes; this load sends one frame of at most 16384")
        self._block = b""
        self._answered: bool | None = None
        self.start_http2()

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send(self) -> None:
        self.stream_id += 2
        if self.stream_id <= 3:  # the second block refers to the fields that the first put into the dynamic table
            self._block = self.header_block(self._method)
        head = frame(HEADERS, END_HEADERS, self.stream_id, self._block)
        self.write(head + frame(DATA, END_STREAM, self.stream_id, self._body))

    def feed(self, data: bytes) -> bool | None:
        self._answered = None
        self.data_received(data)
        return self._answered

    def on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == HEADERS and flags & END_STREAM:
            self._answered = True  # the trailers; the caller checks the first call of a load
        elif kind in (RST_STREAM, GOAWAY):
            self._answered = False


def measure(address: str, request: Request, per_second: float, seconds: float, seed: int = 0) -> Outcome:
    """Load "host:port" with Poisson arrivals. A request that has no answer PATIENCE_S after the end counts as failed."""
    kind = GrpcConnection if request.http2 else HttpConnection
    moments = schedule(per_second, seconds, seed)
    first = min(FIRST_CONNECTIONS, len(moments))
    with _Pool(lambda: kind(address, request), first, MOST_CONNECTIONS) as pool:
        gc.disable()  # a garbage collection would look like a slow server
        try:
            return _Run(pool, moments).run()
        finally:
            gc.enable()


class _Pool:
    """The connections, and which of them are free. `take` returns the connection that has been free longest."""

    def __init__(self, make: Callable[[], Connection], first: int, most: int) -> None:
        self._make, self._most = make, most
        self._all: dict[int, Connection] = {}
        self._free: deque[Connection] = deque()
        self._epoll = select.epoll()
        for _ in range(first):
            self._free.append(self._open())

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *_: object) -> None:
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
        del self._all[connection.socket.fileno()]
        connection.socket.close()

    def ready(self, timeout_s: float) -> list[Connection]:
        """Wait for data. Return the connections with unread data.

        The wait is a `select` on epoll's descriptor, because the timeout of epoll itself has a resolution of milliseconds.
        """
        if not select.select([self._epoll], [], [], timeout_s)[0]:
            return []
        return [self._all[number] for number, _ in self._epoll.poll(0) if number in self._all]

    def _open(self) -> Connection:
        connection = self._make()
        self._all[connection.socket.fileno()] = connection
        self._epoll.register(connection.socket, select.EPOLLIN)
        return connection


class _Run:
    """One measurement."""

    def __init__(self, pool: _Pool, moments: Sequence[float]) -> None:
        self._pool, self._moments = pool, moments
        self._latencies: list[float] = []
        self._next = self._under_way = self._failures = 0
        self._start = 0.0

    def run(self) -> Outcome:
        self._start = time.perf_counter()
        end = self._moments[-1] + PATIENCE_S if self._moments else 0.0
        now = 0.0
        while (self._next < len(self._moments) or self._under_way) and now < end:
            timeout = self._send_what_is_due(now)
            for connection in self._pool.ready(timeout):
                self._receive(connection)
            now = time.perf_counter() - self._start
        failures = len(self._moments) - len(self._latencies)
        return outcome(self._latencies, max(now, 1e-9), failures)

    def _send_what_is_due(self, now: float) -> float:
        """Send each request that is due. Return the seconds until the next one."""
        while self._next < len(self._moments):
            due = self._moments[self._next]
            if due > now:
                return min(due - now, _LONGEST_SLEEP_S)
            connection = self._pool.take()
            if connection is None:
                break
            connection.due = due
            connection.send()
            self._under_way += 1
            self._next += 1
        return _LONGEST_SLEEP_S

    def _receive(self, connection: Connection) -> None:
        answered, due = connection.receive(), connection.due
        if answered is None:
            return
        if due is not None:
            self._under_way -= 1
        if answered and due is not None:
            self._latencies.append(time.perf_counter() - self._start - due)
            self._pool.give_back(connection)
        else:
            self._pool.drop(connection)

"""A cheap HTTP load: one pre-encoded request over raw sockets, one request under way on each connection.

A stock client costs more CPU than the server, so that on one machine it would be what is measured.

    python -m benchmarks.http_load 127.0.0.1:8000 --path /v2 --clients 32 --seconds 5
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import cast

import uvloop

from benchmarks.grpc_load import Outcome


class Client(asyncio.Protocol):
    """One connection that sends the request again when it is answered, until `running()` is false."""

    def __init__(
        self, request: bytes, outcome: Outcome, running: Callable[[], bool], done: asyncio.Future[None]
    ) -> None:
        self._request = request
        self._outcome = outcome
        self._running = running
        self._done = done
        self._rest = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        end = data.find(b"\r\n\r\n")
        start = data.lower().find(b"content-length:", 0, end)
        if end < 0 or len(data) < end + 4 + int(data[start + 15 : data.find(b"\r\n", start)]):
            self._rest = data
            return
        self._rest = b""
        if data.startswith(b"HTTP/1.1 200"):
            self._outcome.latencies.append(time.perf_counter() - self._sent)
        else:
            self._outcome.failures += 1
        if self._running():
            self._send()
        else:
            self._transport.close()


async def _run(address: str, request: bytes, clients: int, seconds: float, limit: int) -> Outcome:
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    outcome = Outcome()
    start = time.perf_counter()
    end = start + seconds

    def running() -> bool:
        return time.perf_counter() < end and len(outcome.latencies) + outcome.failures < limit

    finished = []
    for _ in range(clients):
        done: asyncio.Future[None] = loop.create_future()
        finished.append(done)
        await loop.create_connection(lambda done=done: Client(request, outcome, running, done), host, int(port))  # type: ignore[misc]
    await asyncio.wait_for(asyncio.gather(*finished), seconds + 10)
    outcome.seconds = time.perf_counter() - start
    return outcome


def measure(address: str, request: bytes, clients: int, seconds: float, limit: int = 10_000_000) -> Outcome:
    """Run the load: `clients` connections to "host:port" for `seconds`, or until `limit` requests are answered."""
    return uvloop.run(_run(address, request, clients, seconds, limit))


def http_request(method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """A request as bytes."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="host:port")
    parser.add_argument("--path", default="/v2/health/live")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    for clients in arguments.clients:
        outcome = measure(arguments.address, http_request("GET", arguments.path), clients, arguments.seconds)
        print(
            f"{clients:4d} clients: {outcome.per_second:9.0f} requests/s, p50 {outcome.percentile_ms(50):7.2f} ms, "
            f"p99 {outcome.percentile_ms(99):7.2f} ms, {outcome.failures} failed"
        )


if __name__ == "__main__":
    main()

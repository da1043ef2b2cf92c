"""A closed-loop load over raw sockets: each connection has one request under way and sends the next when it is answered.

A stock client costs more CPU than the server, so that on one machine it would be what is measured.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import uvloop


@dataclass
class Outcome:
    """seconds: wall time; latencies in seconds, one for each request that succeeded."""

    seconds: float = 0.0
    failures: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies, percent)) * 1e3 if self.latencies else float("nan")


class LoadClient(asyncio.Protocol):
    """One connection, until `running()` is false. Subclasses write a request and call `answered` for its answer."""

    def __init__(self, outcome: Outcome, running: Callable[[], bool], done: asyncio.Future[None]) -> None:
        self.outcome = outcome
        self._running = running
        self._done = done
        self._sent = 0.0

    def write_request(self) -> None:
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)
        self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def answered(self, succeeded: bool) -> None:
        if succeeded:
            self.outcome.latencies.append(time.perf_counter() - self._sent)
        else:
            self.outcome.failures += 1
        if self._running():
            self._send()
        else:
            self.transport.close()

    def _send(self) -> None:
        self._sent = time.perf_counter()
        self.write_request()


MakeClient = Callable[[Outcome, Callable[[], bool], "asyncio.Future[None]"], LoadClient]


def measure(address: str, make: MakeClient, clients: int, seconds: float, limit: int = 10_000_000) -> Outcome:
    """Run the load: `clients` connections to "host:port" for `seconds`, or until `limit` requests are answered."""
    return uvloop.run(_run(address, make, clients, seconds, limit))


async def _run(address: str, make: MakeClient, clients: int, seconds: float, limit: int) -> Outcome:
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    outcome = Outcome()
    start = time.perf_counter()
    end = start + seconds

    def running() -> bool:
        return time.perf_counter() < end and len(outcome.latencies) + outcome.failures < limit

    finished = [loop.create_future() for _ in range(clients)]
    for done in finished:
        await loop.create_connection(lambda done=done: make(outcome, running, done), host, int(port))  # type: ignore[misc]
    await asyncio.wait_for(asyncio.gather(*finished), seconds + 10)
    outcome.seconds = time.perf_counter() - start
    return outcome

"""One measurement: a load on a server that runs, and what CPU it cost the server."""

import time

from benchmarks.comparison.record import Key, Measurement
from benchmarks.comparison.servers import Running
from benchmarks.loads import closed_loop, open_loop
from benchmarks.loads.outcome import Outcome
from benchmarks.loads.requests import Request
from benchmarks.machine import cpu_seconds

_SETTLE_S = 0.1  # what a server still does for the last load is not the next one's


def closed(key: Key, running: Running, request: Request, clients: int, seconds: int) -> Measurement:
    """`clients` that each wait for an answer before they ask again."""
    before = _before(running)
    outcome = closed_loop.measure(_address(running, request), request, clients, seconds)
    return _said(Measurement.of(key, outcome, cpu_seconds(running.pid) - before), outcome)


def opened(key: Key, running: Running, request: Request, per_second: float, seconds: int) -> Measurement:
    """Poisson arrivals; their moments differ from round to round and are the same for every server."""
    before = _before(running)
    outcome = open_loop.measure(_address(running, request), request, per_second, seconds, seed=key.round)
    return _said(Measurement.of(key, outcome, cpu_seconds(running.pid) - before, per_second), outcome)


def _address(running: Running, request: Request) -> str:
    return running.grpc if request.http2 else running.http


def _before(running: Running) -> float:
    time.sleep(_SETTLE_S)
    return cpu_seconds(running.pid)


def _said(one: Measurement, outcome: Outcome) -> Measurement:
    key = one.key
    failed = f", {outcome.failures} FAILED" if outcome.failures else ""
    print(
        f"{key.round} {key.server:16} {key.case:24} {key.load:12} {one.per_second:9,.0f}/s  p50 {one.p50_ms:8.2f} ms  "
        f"p99 {one.p99_ms:8.2f} ms  CPU {one.cpu_us:7.0f} us{failed}",
        flush=True,
    )
    return one

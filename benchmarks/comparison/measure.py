"""Measures throughput, latency and CPU time of a running server under one load, and orders the turns of a round."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.comparison.record import Key, Measurement
from benchmarks.loads import closed_loop
from benchmarks.machine import cpu_seconds, own_cpu_seconds
from benchmarks.servers.process import Running
from dashboard.loads import load
from dashboard.loads.connection import Target
from dashboard.loads.requests import Request

T = TypeVar("T")
_SETTLE_S = 0.1  # the pause in which a server finishes its work for the last load


class CannotMeasure(Exception):
    """A load could not run, most often because the server has ended. The text gives the reason."""


def closed(key: Key, running: Running, request: Request, clients: int, seconds: int) -> Measurement:
    """Measure a closed loop: each client waits for an answer before it sends the next request."""
    with _measuring(key, running) as cpu:
        outcome = closed_loop.measure(_address(running, request), request, clients, seconds)
    return _print(Measurement.of(key, outcome, cpu.tree_s, cpu.root_s))


def opened(key: Key, running: Running, request: Request, per_second: float, seconds: int) -> Measurement:
    """Measure Poisson arrivals. Their times differ from round to round, but are the same for every server."""
    own = time.process_time()
    with _measuring(key, running) as cpu:
        outcome = load.opened(Target(_address(running, request)), [request], per_second, seconds, seed=key.round)
    share = (time.process_time() - own) / outcome.seconds
    return _print(Measurement.of(key, outcome, cpu.tree_s, cpu.root_s, per_second, share))


@dataclass
class _Cpu:
    """The CPU time that a server used during a measurement, and the share of its first process."""

    tree_s: float = 0.0
    root_s: float = 0.0


@contextmanager
def _measuring(key: Key, running: Running) -> Iterator[_Cpu]:
    time.sleep(_SETTLE_S)
    used = _Cpu()
    tree, root = cpu_seconds(running.pid), own_cpu_seconds(running.pid)
    try:
        yield used
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise CannotMeasure(f"{key.server}, {key.case}, {key.load}: {error}") from None
    used.tree_s, used.root_s = cpu_seconds(running.pid) - tree, own_cpu_seconds(running.pid) - root


def _address(running: Running, request: Request) -> str:
    return running.grpc if request.http2 else running.http


def _print(one: Measurement) -> Measurement:
    key = one.key
    failed = f", {one.failures} FAILED" if one.failures else ""
    print(
        f"{key.round} {key.server:16} {key.case:24} {key.load:12} {one.per_second:9,.0f}/s  p50 {one.p50_ms:8.2f} ms  "
        f"p99 {one.p99_ms:8.2f} ms  CPU {one.cpu_us:7.0f} us{failed}",
        flush=True,
    )
    return one


def order(items: Sequence[T], number: int) -> list[T]:
    """Return the turns of a round, reversed in every other round, so that a drift of the machine favours no server."""
    return list(items) if number % 2 else list(reversed(items))

"""`python -m benchmarks.soak`: see benchmarks/soak/__init__.py."""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from benchmarks.machine import commit, machine
from benchmarks.soak.dashboard import Dashboard
from benchmarks.soak.disturbances import Disturbances
from benchmarks.soak.load import Traffic
from benchmarks.soak.processes import usage
from benchmarks.soak.record import Record, markdown
from tests.support.serving_process import ROOT
from tests.support.up_process import Up

WARM_UP = 2000
SETTLES_S = 15.0  # the wait after the load, before memory is read
SERVER_KILLS = 3
# The share of the requests that are sent before the server itself is killed, because that is reported separately.
BEFORE_THE_KILLS = 0.95


# A short timeout, after which a stopped process of a model is noticed, so that more stops fit into a run.
FLAGS = "--process-heartbeat-timeout-secs=5"


class OutOfTime(Exception):
    pass


class Soak:
    """One segment of the soak, against a running `up`."""

    def __init__(self, up: Up, record: Record, seconds: float, frontend_workers: int) -> None:
        self._up = up
        self._frontend_workers = frontend_workers
        self._record = record
        self._segment = record.segment
        self._start = time.monotonic()
        self._end = self._start + seconds

    async def run(self) -> None:
        dashboard = Dashboard(self._up)
        disturbances = Disturbances(self._up, dashboard, self._segment)
        if self._frontend_workers:
            disturbances.change_the_frontend_workers()
        http, grpc = (f"127.0.0.1:{port}" for port in self._up.ports[1:3])
        traffic = disturbances.traffic = Traffic(http, grpc, self._segment, disturbances.judge)
        try:
            await dashboard.sign_in()
            await dashboard.take_over()
            await self._under_load(traffic, disturbances)
        finally:
            await disturbances.close()
            await dashboard.close()

    async def _under_load(self, traffic: Traffic, disturbances: Disturbances) -> None:
        traffic.start()
        await self._until(lambda: self._segment.asked >= min(WARM_UP, self._record.left))
        await self._pause(traffic, "before")
        sampler = asyncio.create_task(self._sample())
        try:
            traffic.start()
            await self._within(disturbances.run(self._has_sent(BEFORE_THE_KILLS)))
            await self._until(self._has_sent(BEFORE_THE_KILLS))
            await self._pause(traffic, "after")
            traffic.start()
            while self._segment.disturbances["the server killed"] < SERVER_KILLS:
                await self._within(disturbances.kill_the_server())
            await self._until(self._has_sent(1.0))
        finally:
            sampler.cancel()
            await self._pause(traffic, "at the end")

    def _has_sent(self, share: float) -> Callable[[], bool]:
        return lambda: self._segment.asked >= share * self._record.left

    async def _pause(self, traffic: Traffic, when: str) -> None:
        if traffic.running:
            await traffic.stop()
            await asyncio.sleep(SETTLES_S)
        self._segment.usage[when] = usage(self._up.pid)
        self._segment.seconds = time.monotonic() - self._start
        self._record.save()

    async def _sample(self) -> None:
        while True:
            self._segment.most(usage(self._up.pid))
            self._segment.seconds = time.monotonic() - self._start
            self._record.save()
            print(
                f"{time.strftime('%H:%M:%S')} {self._segment.asked:,} of {self._record.left:,} requests, "
                f"{self._record.unexpected} failed unexpectedly, {self._segment.disturbances.total()} disturbances",
                flush=True,
            )
            await asyncio.sleep(5)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if time.monotonic() > self._end:
                raise OutOfTime
            await asyncio.sleep(0.05)

    async def _within(self, work: object) -> None:
        try:
            await asyncio.wait_for(work, max(self._end - time.monotonic(), 0.0))  # type: ignore[call-overload]
        except TimeoutError:
            if time.monotonic() >= self._end:
                raise OutOfTime from None
            raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3 * 3600.0, help="stop then; a later run goes on")
    parser.add_argument("--folder", type=Path, default=ROOT / "soak-results", help="of soak.md, and of soak.json")
    parser.add_argument("--anew", action="store_true", help="forget what an earlier run has counted")
    parser.add_argument("--frontend-workers", type=int, default=0, help="of the inference server; they are killed, too")
    given = parser.parse_args()
    record = Record(given.folder, given.requests, given.anew)
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with (
        tempfile.TemporaryDirectory(prefix="slipway-soak-") as folder,
        Up(Path(folder) / "data", SLIPWAY_SERVER_FLAGS=f"{FLAGS} --frontend-workers={given.frontend_workers}") as up,
    ):
        up.start()
        _take_one_core()
        with suppress(KeyboardInterrupt):
            try:
                uvloop.run(Soak(up, record, given.seconds, given.frontend_workers).run())
            except OutOfTime:
                print("The time is over; another run goes on from here.")
    record.save()
    record.page.write_text(markdown(record, commit(), machine()))
    print(f"{record.page}: {record.unexpected} requests failed unexpectedly, {len(record.problems)} problems")
    return 1 if record.unexpected or record.problems else 0


def _take_one_core() -> None:
    """Bind the load generator to the last core, so that it takes at most one core from the measured server."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])


if __name__ == "__main__":
    sys.exit(main())

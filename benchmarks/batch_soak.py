"""Sends a million rows through a batch job while processes are killed: each row must come back once.

    python -m benchmarks.batch_soak --rows 1000000

The program runs a complete `manage.py up`. Clients send requests at a fixed rate (open loop; a latency counts from the moment
at which its request was due). Their p99 is measured without the batch job, then beside it. Windows around a kill do not count,
because a server that is gone answers nobody. The worker, the dashboard and the server are killed in turn. The exit status is 1
if a row is lost, doubled or wrong, or if the median p99 of the windows rises by more than 10 %.
"""

import argparse
import asyncio
import csv
import itertools
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import uvloop

from benchmarks.soak.dashboard import Dashboard
from tests.support.model_factory import onnx_mlp
from tests.support.up_process import Up

MODEL = "scored"
WIDTH = 16
WINDOW_S = 10.0
AROUND_S = 20.0  # after a kill, windows that begin within this time do not count
CHUNK = 8 << 20
KILLED = (("celery",), ("serving",), ("daphne",))  # words of the command lines
BATCHING = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"
BODY = {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, WIDTH], "data": [0.5] * WIDTH}]}


class Clients:
    """Requests at a fixed rate. latencies: the moment at which each was due, and its seconds; failures are not in it."""

    def __init__(self, url: str, rate: float) -> None:
        self._url, self._rate = f"{url}/v2/models/{MODEL}/infer", rate
        self.latencies: list[tuple[float, float]] = []
        self.failures = 0

    async def run(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client, asyncio.TaskGroup() as group:
            due = time.monotonic()
            while True:
                due += 1 / self._rate
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                group.create_task(self._send(client, due))

    async def _send(self, client: httpx.AsyncClient, due: float) -> None:
        try:
            answer = await client.post(self._url, json=BODY)
        except httpx.HTTPError:
            self.failures += 1
            return
        if answer.status_code == 200:
            self.latencies.append((due, time.monotonic() - due))
        else:
            self.failures += 1

    def p99s(self, begin: float, end: float, kills: list[float]) -> list[float]:
        """Return the p99 in ms of each window of a span of time, without windows near a kill."""
        found = []
        for at in itertools.count(begin, WINDOW_S):
            if at + WINDOW_S > end:
                return found
            if not any(at - WINDOW_S < kill + AROUND_S and kill < at + WINDOW_S for kill in kills):
                window = sorted(seconds for due, seconds in self.latencies if at <= due < at + WINDOW_S)
                if window:
                    found.append(1000 * window[int(0.99 * (len(window) - 1))])
        raise AssertionError


def content(rows: int) -> Iterator[bytes]:
    yield (",".join(["id", *(f"INPUT_{at}" for at in range(WIDTH))]) + "\n").encode()
    for row in range(rows):
        yield (",".join([str(row), *(str((row * 7 + at) % 101) for at in range(WIDTH))]) + "\n").encode()


async def send_file(dashboard: Dashboard, path: Path) -> str:
    size = path.stat().st_size
    body = {"model_name": MODEL, "files": [{"path": path.name, "size": size}]}
    batch = str((await dashboard.ask("POST", "batches", json=body))["id"])
    with path.open("rb") as file:
        for offset in range(0, size, CHUNK):
            address = f"batches/{batch}/files/0"
            chunk = file.read(CHUNK)
            headers = {"Content-Type": "application/octet-stream"}
            await dashboard.ask("PUT", address, params={"offset": offset}, content=chunk, headers=headers)
    return batch


async def kill_in_turn(up: Up, every_s: float, kills: list[float]) -> None:
    for words in itertools.cycle(KILLED):
        await asyncio.sleep(every_s)
        found = await asyncio.to_thread(up.running, *words)
        for pid in found[:1]:
            print(f"SIGKILL of {words[0]}", flush=True)
            os.kill(pid, signal.SIGKILL)
            kills.append(time.monotonic())


async def until_ended(dashboard: Dashboard, batch: str) -> Any:
    said = ""
    while (found := await dashboard.ask("GET", f"batches/{batch}"))["state"] in ("queued", "running"):
        if found["step"] != said:
            said = found["step"]
            print(said, flush=True)
        await asyncio.sleep(5)
    return found


async def measure(up: Up, given: argparse.Namespace, folder: Path) -> int:
    dashboard = Dashboard(up)
    await dashboard.sign_in()
    onnx_mlp(up.data / "models", MODEL, (WIDTH, 256, 256, 1), max_batch_size=64, extra=BATCHING)
    await dashboard.ask("POST", f"models/{MODEL}/adopt")
    await dashboard.load(MODEL)
    path = folder / "rows.csv"
    with path.open("wb") as file:
        file.writelines(content(given.rows))
    batch = await send_file(dashboard, path)
    clients, kills = Clients(up.http_url, given.rate), list[float]()
    live = asyncio.create_task(clients.run())
    await asyncio.sleep(WINDOW_S)  # warm-up
    began = time.monotonic()
    await asyncio.sleep(given.baseline_s)
    started = time.monotonic()
    await dashboard.ask("POST", f"batches/{batch}/start", json={"most_errors": 0})
    killer = asyncio.create_task(kill_in_turn(up, given.kill_every_s, kills))
    found = await until_ended(dashboard, batch)
    ended = time.monotonic()
    killer.cancel()
    live.cancel()
    await asyncio.gather(killer, live, return_exceptions=True)
    await dashboard.close()
    if found["state"] != "succeeded":
        print(f"the batch job {found['state']}: {found['error']}")
        return 1
    wrong = compare(path, up.data / "batches" / batch / "results" / "0")
    before, beside = clients.p99s(began, started, []), clients.p99s(started, ended, kills)
    rise = statistics.median(beside) / statistics.median(before) - 1 if before and beside else float("nan")
    print(f"{given.rows:,} rows in {ended - started:.0f} s through {len(kills)} kills; {wrong} lost, doubled or wrong")
    print(f"p99 of clients: {spread(before)} before, {spread(beside)} beside the batch job: {rise:+.1%}")
    return 0 if not wrong and rise <= 0.10 else 1


def spread(values: list[float]) -> str:
    """Return the median of windows with their quartiles, in ms."""
    if len(values) < 2:
        return "unknown"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ms ({low:.2f} to {high:.2f}, {len(values)} windows)"


def compare(source: Path, result: Path) -> int:
    """Return the number of rows of the result that differ from the source, or that only one of them has."""
    wrong = 0
    with source.open(newline="") as given, result.open(newline="") as found:
        answers: dict[tuple[str, ...], float] = {}
        for row, answered in itertools.zip_longest(csv.reader(given), csv.reader(found)):
            if row is None or answered is None or answered[: len(row)] != row:
                wrong += 1
            elif row[0] != "id":
                answer, error = answered[len(row) :]
                # Rows with the same values have the same answer, except for the last digits, which depend on the batch.
                expected = answers.setdefault(tuple(row[1:]), float(answer or "nan"))
                wrong += bool(error) or not math.isclose(float(answer or "nan"), expected, rel_tol=1e-3, abs_tol=1e-3)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=50.0, help="live requests a second")
    parser.add_argument("--baseline-s", type=float, default=120.0, help="seconds without the batch job")
    parser.add_argument("--kill-every-s", type=float, default=90.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipway-batch-") as folder, Up(Path(folder) / "data") as up:
        up.start()
        return int(uvloop.run(measure(up, given, Path(folder))))


if __name__ == "__main__":
    sys.exit(main())

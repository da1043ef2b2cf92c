"""Replays a million captured requests while the worker is killed: each request must be counted once.

    python -m benchmarks.replay_soak --requests 1000000

The program runs a complete `manage.py up`, and writes a capture as the server would. One answer in 1,000 is wrong, so the
number of differences is known. The worker gets a SIGKILL every `--kill-every-s`. A second replay is cancelled. The exit
status is 1 if a request is not counted, is counted twice, or the cancelled replay goes on.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from benchmarks.machine import machine
from benchmarks.soak.dashboard import Dashboard
from repository.core.capture_files import Record, encoded
from repository.core.captures import file_name
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ROOT
from tests.support.up_process import Up

MODEL = "scaled"
FILE_ROWS = 10_000  # as the server writes at most
WRONG_EACH = 1000
_CAPTURE = """
from dashboard.models import Model
from tests.dashboard.drift.captured import make_capture
print("capture", make_capture(Model.objects.get(name="scaled")).pk)
"""


def make_capture(up: Up, requests: int) -> str:
    """Write a capture of requests to the model, and return its id."""
    made = subprocess.run(
        [sys.executable, "manage.py", "shell", "-c", _CAPTURE],
        cwd=ROOT, env={**os.environ, **up.environment}, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    capture = made.split()[made.split().index("capture") + 1]
    folder = up.data / "captures" / capture
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(1, requests + 1, FILE_ROWS):
        numbers = range(first, min(first + FILE_ROWS, requests + 1))
        (folder / file_name(first, len(numbers))).write_bytes(encoded([record(number) for number in numbers]))
    return capture


def record(number: int) -> Record:
    asked = np.array([[number % 1013]], np.float32)
    answered = asked * 2 + np.float32(100 * (number % WRONG_EACH == 0))
    return Record(number, "", 1.7e9, 1, "", None, 200, {"INPUT0": asked}, {"OUTPUT0": answered})


async def watch_memory(up: Up, peaks: dict[str, float]) -> None:
    """Keep the peak memory of the worker's processes, in MiB each."""
    while True:
        for pid in up.running("celery"):
            try:
                peaks["worker"] = max(peaks.get("worker", 0.0), psutil.Process(pid).memory_info().rss / 2**20)
            except psutil.Error:
                continue
        await asyncio.sleep(1)


async def kill_workers(up: Up, every_s: float, kills: list[float]) -> None:
    while every_s:
        await asyncio.sleep(every_s)
        for pid in await asyncio.to_thread(up.running, "celery"):
            os.kill(pid, signal.SIGKILL)
        kills.append(time.monotonic())
        print("SIGKILL of the worker", flush=True)


async def until(dashboard: Dashboard, path: str, done: int) -> Any:
    """Return a replay that has ended, or counted so many requests."""
    said = ""
    while True:
        found = await dashboard.ask("GET", path)
        if found["state"] not in ("waiting", "running") or found["done"] >= done:
            return found
        step = (await dashboard.ask("GET", f"jobs/{found['job']}"))["step"]
        if step != said:
            said = step
            print(step, flush=True)
        await asyncio.sleep(2)


async def measure(up: Up, given: argparse.Namespace) -> int:
    dashboard = Dashboard(up)
    await dashboard.sign_in()
    onnx_scale(up.data / "models", MODEL)
    await dashboard.ask("POST", f"models/{MODEL}/adopt")
    began = time.monotonic()
    capture = await asyncio.to_thread(make_capture, up, given.requests)
    print(f"{given.requests:,} requests written in {time.monotonic() - began:.0f} s", flush=True)
    path, kills, peaks = f"models/{MODEL}/captures/{capture}/replays", list[float](), dict[str, float]()
    began = time.monotonic()
    replay = (await dashboard.ask("POST", path, json={"version": 1, "clients": given.clients}))["id"]
    tasks = [
        asyncio.create_task(kill_workers(up, given.kill_every_s, kills)),
        asyncio.create_task(watch_memory(up, peaks)),
    ]
    found = await until(dashboard, f"{path}/{replay}", 1 << 62)
    seconds = time.monotonic() - began
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    second = (await dashboard.ask("POST", path, json={"version": 1}))["id"]
    running = await until(dashboard, f"{path}/{second}", 1)
    await dashboard.ask("POST", f"jobs/{running['job']}/cancel")
    asked = time.monotonic()
    cancelled = await until(dashboard, f"{path}/{second}", 1 << 62)
    took = time.monotonic() - asked
    await dashboard.close()
    print(f"Machine: {machine()}")
    print(
        f"{found['done']:,} of {given.requests:,} requests in {seconds:.0f} s through {len(kills)} kills of the worker: "
        f"{found['compared']:,} compared, {found['differ']:,} differ, {found['failed']:,} failed; {found['note']}"
    )
    print(f"the worker took at most {peaks.get('worker', 0):.0f} MiB; latency {found['latency']}")
    print(
        f"the second replay was {cancelled['state']} {took:.1f} s after its cancellation, with {cancelled['done']:,} counted"
    )
    right = (found["done"], found["compared"], found["differ"], found["failed"], cancelled["state"])
    return 0 if right == (given.requests, given.requests, given.requests // WRONG_EACH, 0, "cancelled") else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--kill-every-s", type=float, default=90.0, help="0 for no kills")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="slipway-replay-") as folder, Up(Path(folder) / "data") as up:
        up.start()
        return int(uvloop.run(measure(up, given)))


if __name__ == "__main__":
    sys.exit(main())

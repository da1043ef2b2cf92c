"""Measures the time of one request by stage: microseconds and calls on the event loop's thread.

python -m benchmarks.stages [--seconds 4] [--page docs/performance.md]
"""

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.instructions import record
from benchmarks.instructions.cases import CASES, Case
from benchmarks.instructions.clients import CLIENTS
from benchmarks.instructions.models import write_models
from benchmarks.stages.table import Column, by_stage, render
from serving.compiled.loading import VARIABLE
from tests.support.serving_process import ServerProcess, wait_until

PATHS = (  # names from the table of instructions, benchmarks/instructions/cases.py
    "JSON",
    "binary",
    "gRPC",
    "binary, 16 at once",
    "gRPC, 16 at once",
    "binary, batches of 16",
    "Python model, binary",
)
WARM_UP_S = 1.0
MARKS = re.compile(r"(<!-- stages -->\n).*?(<!-- end of stages -->)", re.DOTALL)


class Measured(NamedTuple):
    """The figures of one path, for each request. amounts: nanoseconds or calls, by package of the server."""

    amounts: dict[str, float]
    process_ns: float
    child_ns: float


class ProfiledServer(ServerProcess):
    """The server, which profiles itself between two signals. mode: "time" or "calls"."""

    def __init__(self, repository: Path, mode: str) -> None:
        self._found = repository.parent / f"{mode}.json"
        super().__init__(repository, environment={"STAGES_FILE": str(self._found), "STAGES_MODE": mode, VARIABLE: "no"})

    def measure(self, case: Case, seconds: float) -> Measured:
        address = self.grpc if case.protocol == "grpc" else self.http
        client = CLIENTS[case.protocol](address, case.model, case.at_once)
        try:
            _ask_for(client.ask, WARM_UP_S)
            self._toggle()
            before = self._child_seconds()
            requests = _ask_for(client.ask, seconds) * case.at_once
            children = self._child_seconds() - before
            self._toggle()
        finally:
            client.close()
        wait_until(self._found.exists, what="the server's profile")
        found = json.loads(self._found.read_text())
        self._found.unlink()
        amounts = {room: amount / requests for room, amount in found["rooms"].items()}
        return Measured(amounts, found["process_ns"] / requests, children * 1e9 / requests)

    def _toggle(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def _child_seconds(self) -> float:
        times = [child.cpu_times() for child in psutil.Process(self.pid).children(recursive=True)]
        return float(sum(time.user + time.system for time in times))

    def _command(self) -> list[str]:
        _, _, _, *flags = super()._command()
        return [sys.executable, "-m", "benchmarks.stages.profiled_server", *flags]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each measurement")
    parser.add_argument("--page", type=Path, help="a page with the marks between which the table is written")
    arguments = parser.parse_args()
    cases = [case for name in PATHS for case in CASES if case.name == name]
    found: dict[str, list[Measured]] = {}
    for mode in ("time", "calls"):
        with tempfile.TemporaryDirectory(prefix="slipway-stages-") as folder:
            repository = Path(folder, "models")
            write_models(repository)
            with ProfiledServer(repository, mode) as server:
                found[mode] = [server.measure(case, arguments.seconds) for case in cases]
    instructions = record.read(compiled=False).paths
    columns = []
    for case, timed, called in zip(cases, found["time"], found["calls"], strict=True):
        us = {stage: amount / 1000 for stage, amount in by_stage(timed.amounts).items()}
        calls = by_stage(called.amounts)
        counted = instructions.get(case.name)
        columns.append(Column(case.name, us, calls, timed.process_ns / 1000, timed.child_ns / 1000, counted))
    table = render(columns)
    print(table)
    if arguments.page is not None:
        text = arguments.page.read_text()
        arguments.page.write_text(MARKS.sub(lambda marks: f"{marks[1]}{table}\n{marks[2]}", text))


def _ask_for(ask: Callable[[], None], seconds: float) -> int:
    """Call `ask` again and again for `seconds`. Return the number of calls."""
    end, times = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        ask()
        times += 1
    return times


if __name__ == "__main__":
    main()

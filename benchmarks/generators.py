"""`make bench-generators`: the product's load generator (`dashboard.loads`) beside wrk, h2load and perf_analyzer.

python -m benchmarks.generators [--clients 8] [--seconds 4] [--rounds 4]

All of them send the same closed loop to the same server, in turns; each round reverses the order. perf_analyzer takes part if
`make bench-perf-analyzer` has unpacked it.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson

from benchmarks import perf_analyzer
from benchmarks.loads import closed_loop
from benchmarks.machine import commit, machine
from dashboard.loads.program import Plan, plan_to_json
from dashboard.loads.requests import Request, v2_binary, v2_grpc
from repository.core.quantities import three_digits
from tests.support.model_factory import onnx_mlp
from tests.support.serving_process import ROOT, ServerProcess

# Name of a model -> the sizes of its layers: one whose requests cost mostly transport, and one that is mostly computed.
MODELS = {"small": (16, 10), "mlp": (512, 2048, 2048, 10)}
OURS = "dashboard.loads"


class Result(NamedTuple):
    per_second: float
    p50_ms: float
    p99_ms: float


Generator = Callable[[ServerProcess, str, Request], Result]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=4, help="length of one run")
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    if missing := closed_loop.missing():
        raise SystemExit(f"sudo apt-get install {' '.join(missing)}")
    print(
        f"Commit {commit()}; machine: {machine()}. {given.clients} clients, {given.rounds} runs of {given.seconds} s.\n"
    )
    print(
        "| model, protocol | generator | requests/s | of ours | p50 ms | p99 ms |\n| --- | --- | ---: | ---: | ---: | ---: |"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, sizes in MODELS.items():
            onnx_mlp(Path(folder), name, sizes=sizes, extra=perf_analyzer.ONE_THREAD)
        with ServerProcess(Path(folder)) as server:
            for name, sizes in MODELS.items():
                for protocol, make in (("HTTP", v2_binary), ("gRPC", v2_grpc)):
                    request = make(name, {"INPUT": np.zeros((1, sizes[0]), np.float32)})
                    _compare(server, name, protocol, request, given)


def _compare(server: ServerProcess, name: str, protocol: str, request: Request, given: argparse.Namespace) -> None:
    """Run the generators in turns, and print their rows."""
    yardstick = "h2load" if request.http2 else "wrk"
    generators: dict[str, Generator] = {OURS: _ours(given), yardstick: _yardstick(given)}
    if perf_analyzer.BINARY.exists():
        generators["perf_analyzer"] = _perf_analyzer(given)
    found: dict[str, list[Result]] = {one: [] for one in generators}
    for number in range(given.rounds):
        for one in list(generators)[:: -1 if number % 2 else 1]:
            found[one].append(generators[one](server, name, request))
    for one, results in found.items():
        ratios = [other.per_second / ours.per_second for other, ours in zip(results, found[OURS], strict=True)]
        cells = [
            _words([result.per_second for result in results]),
            "" if one == OURS else _words([ratio * 100 for ratio in ratios]) + " %",
            _words([result.p50_ms for result in results]),
            _words([result.p99_ms for result in results]),
        ]
        print(f"| {name}, {protocol} | {one} | {' | '.join(cells)} |", flush=True)


def _words(values: Sequence[float]) -> str:
    """Return the median with the smallest and the largest value."""
    return f"{three_digits(statistics.median(values))} ({three_digits(min(values))}-{three_digits(max(values))})"


def _ours(given: argparse.Namespace) -> Generator:
    """Run the generator as a measurement does, in a process of its own."""

    def run(server: ServerProcess, name: str, request: Request) -> Result:
        address = server.grpc if request.http2 else server.http
        plan = Plan(
            address, [request], [given.clients], warmup_s=0.5, window_s=given.seconds, least_windows=1, most_windows=1
        )
        done = subprocess.run(
            [sys.executable, "-m", OURS], cwd=ROOT, input=plan_to_json(plan), capture_output=True, text=True, check=True
        )
        outcome = orjson.loads(done.stdout.splitlines()[-1])["outcome"]
        if outcome["failures"]:
            raise SystemExit(f"{OURS}: requests failed: {outcome['reasons']}")
        return Result(outcome["requests"] / outcome["seconds"], outcome["p50_ms"], outcome["p99_ms"])

    return run


def _yardstick(given: argparse.Namespace) -> Generator:
    def run(server: ServerProcess, name: str, request: Request) -> Result:
        address = server.grpc if request.http2 else server.http
        found = closed_loop.measure(address, request, given.clients, given.seconds)
        return Result(found.per_second, found.p50_ms, found.p99_ms)

    return run


def _perf_analyzer(given: argparse.Namespace) -> Generator:
    def run(server: ServerProcess, name: str, request: Request) -> Result:
        case = perf_analyzer.Case(name, name, "grpc" if request.http2 else "http")
        found = perf_analyzer.measure(server, case, given.clients, given.seconds * 1000 // 3)
        return Result(found.per_second, found.p50 / 1000, found.p99 / 1000)

    return run


if __name__ == "__main__":
    main()

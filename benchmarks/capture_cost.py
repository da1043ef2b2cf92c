"""Measures what a capture costs: in instructions, and in pairs of loads with and without it.

    python -m benchmarks.capture_cost [--compiled] [--pairs 12] [--seconds 10] [--instructions-only | --pairs-only]

Instructions: one request under valgrind without captures, with a capture that chooses none, and with one that chooses every
request; and what a row of a file takes to be written. Pairs: one server under a closed loop of 32 clients, in turn without and
with a capture of 10 %; medians of the differences. They need a machine that does nothing else.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from benchmarks.instructions.__main__ import count_cases
from benchmarks.instructions.captured_rows import ROWS
from benchmarks.instructions.cases import Case
from benchmarks.instructions.counting import check_tools, count_program
from dashboard.loads.connection import Target
from dashboard.loads.load import closed
from dashboard.loads.requests import Request, v2_binary, v2_grpc, v2_json
from repository.core.captures import counters_path
from serving.compiled.loading import VARIABLE
from serving.compiled.modules import build_folder
from tests.serving.captures.wanted import counts, want
from tests.support.model_factory import onnx_add_sub
from tests.support.serving_process import ServerProcess, wait_until

MODEL = "plain"
ONLY = ("--model-control-mode=explicit", f"--load-model={MODEL}")
SHARE = 0.1
CLIENTS = 32
PROTOCOLS = ("json", "binary", "grpc")
ENCODERS = {"json": v2_json, "binary": v2_binary, "grpc": v2_grpc}


@contextlib.contextmanager
def capture(folder: Path, share: float) -> Iterator[Path]:
    """Ask for a capture, and remove its counters at the end."""
    try:
        yield want(folder, MODEL, share=share)
    finally:
        counters_path(folder).unlink(missing_ok=True)


def count_instructions(folder: Path, compiled: bool) -> None:
    check_tools()
    with contextlib.ExitStack() as captures:
        flags: dict[str, tuple[str, ...]] = {"no captures": ONLY}
        for name, share in (("none is chosen", 1e-9), ("every one is chosen", 1.0)):
            captures.enter_context(capture(folder / name / "c", share))
            flags[name] = (f"--capture-folder={folder / name}", *ONLY)
        cases = [
            Case(f"{protocol}, {name}", protocol, MODEL, 1, of) for name, of in flags.items() for protocol in PROTOCOLS
        ]
        counted = count_cases(cases, folder, {}, compiled)
    written = count_program(folder, "benchmarks.instructions.captured_rows") // ROWS
    print(f"writing one of {ROWS:,} requests of a file: {written:,}")
    for protocol in PROTOCOLS:
        without, none, every = (counted[f"{protocol}, {name}"] for name in flags)
        cost = none - without + SHARE * (every - none + written)
        print(f"{protocol}: {SHARE:.0%} captured costs {cost:,.0f} instructions more, {cost / without:.1%}")


def compare_loads(folder: Path, compiled: bool, pairs: int, seconds: int) -> None:
    onnx_add_sub(folder / "loaded", MODEL, "INT32", [16])
    one = np.ones((1, 16), np.int32)
    flags = (f"--capture-folder={folder / 'captures'}", *ONLY)
    environment = {VARIABLE: "yes" if compiled else "no"}
    with ServerProcess(folder / "loaded", *flags, environment=environment) as server:
        for protocol in PROTOCOLS:
            request = ENCODERS[protocol](MODEL, {"INPUT0": one, "INPUT1": one})
            closed(_target(server, protocol), [request], CLIENTS, seconds)
            found = [_pair(server, protocol, request, folder, number, seconds) for number in range(pairs)]
            for place, what in enumerate(("requests a second", "CPU time of a request", "p99")):
                ratios = [captured[place] / without[place] - 1 for without, captured in found]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(
                    f"{protocol}: {what} {middle:+.1%} with a capture of {SHARE:.0%}, quartiles {low:+.1%} to {high:+.1%}"
                )


def _pair(
    server: ServerProcess, protocol: str, request: Request, folder: Path, number: int, seconds: int
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Return the figures without and with a capture; every other pair begins with the capture."""
    captured_first = number % 2 == 1
    found = {}
    of = folder / "captures" / f"{protocol}-{number}"
    for captured in (captured_first, not captured_first):
        with contextlib.ExitStack() as stack:
            if captured:
                stack.enter_context(capture(of, SHARE))
                wait_until(counters_path(of).exists, what="the capture")
                time.sleep(0.5)  # until the event loop knows it
            found[captured] = _load(server, protocol, request, seconds)
            if captured:
                want(of, MODEL, share=SHARE, stopped=True)
                wait_until(
                    lambda of=of: (of / "counts.json").exists() and counts(of)["ended"], what="the end of the capture"
                )
                known = counts(of)
                assert known["written"] == known["chosen"], known
    return found[False], found[True]


def _load(server: ServerProcess, protocol: str, request: Request, seconds: int) -> tuple[float, float, float]:
    """Return requests a second, CPU seconds of the server for each, and the p99 in ms."""
    process = psutil.Process(server.pid)
    before = sum(process.cpu_times()[:2])
    done = closed(_target(server, protocol), [request], CLIENTS, seconds)
    used = sum(process.cpu_times()[:2]) - before
    if done.failures or not done.requests:
        sys.exit(f"{done.failures} requests failed")
    return done.per_second, used / done.requests, done.p99_ms


def _target(server: ServerProcess, protocol: str) -> Target:
    return Target(server.grpc if protocol == "grpc" else server.http)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", action="store_true", help="measure the compiled modules")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=int, default=10, help="of each load")
    parser.add_argument("--instructions-only", action="store_true")
    parser.add_argument("--pairs-only", action="store_true")
    given = parser.parse_args()
    if given.compiled and not build_folder().is_dir():
        parser.error("these sources are not compiled: run `make compiled`")
    with tempfile.TemporaryDirectory(prefix="slipway-capture-cost-") as folder:
        if not given.pairs_only:
            count_instructions(Path(folder), given.compiled)
        if not given.instructions_only:
            compare_loads(Path(folder), given.compiled, given.pairs, given.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())

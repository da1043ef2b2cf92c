"""Measures what a capture costs: in instructions, and in pairs of loads with and without it.

    python -m benchmarks.capture_cost [--compiled] [--pairs 40] [--seconds 1] [--instructions-only | --pairs-only]

Instructions: one request under valgrind without captures, with a capture that chooses none, and with one that chooses every
request; and what a row of a file takes to be written. Pairs: one server with two equal models, of which one has a capture of
every request: the tenth that 10 % cost is less than such a machine's noise. 32 clients ask the two in turn, a second each, so
that a machine whose speed changes slows both. The writer of the capture works in the seconds of both models, so its CPU time is
told apart. They need a machine that does nothing else.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
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

MODEL, CAPTURED = "plain", "taken"
ONLY = ("--model-control-mode=explicit", f"--load-model={MODEL}")
SHARE = 0.1
CLIENTS = 32
PROTOCOLS = ("json", "binary", "grpc")
ENCODERS = {"json": v2_json, "binary": v2_binary, "grpc": v2_grpc}


@contextlib.contextmanager
def capture(folder: Path, share: float, model: str = MODEL) -> Iterator[Path]:
    """Ask for a capture, and remove its counters at the end."""
    try:
        yield want(folder, model, share=share)
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


def compare_loads(folder: Path, compiled: bool, pairs: int, seconds: float) -> None:
    for model in (MODEL, CAPTURED):
        onnx_add_sub(folder / "loaded", model, "INT32", [16])
    one = np.ones((1, 16), np.int32)
    flags = (f"--capture-folder={folder / 'captures'}", *ONLY, f"--load-model={CAPTURED}")
    environment = {VARIABLE: "yes" if compiled else "no"}
    with ServerProcess(folder / "loaded", *flags, environment=environment) as server:
        for protocol in PROTOCOLS:
            plain, captured = (ENCODERS[protocol](model, {"INPUT0": one, "INPUT1": one}) for model in (MODEL, CAPTURED))
            with capture(folder / "captures" / protocol, 1.0, CAPTURED) as of:
                wait_until((of / "counts.json").exists, what="the capture")
                closed(_target(server, protocol), [captured], CLIENTS, 2 * seconds)
                found = []
                for number in range(pairs):  # every other pair begins with the captured model
                    pair = [_load(server, protocol, each, seconds) for each in (plain, captured)[:: (-1) ** number]]
                    found.append(pair[:: (-1) ** number])
                want(of, CAPTURED, share=1.0, stopped=True)
                wait_until(partial(_ended, of), what="the end of the capture")
                known = counts(of)
                assert known["written"] == known["chosen"], known
            for what in ("requests a second", "CPU time of the event loop", "p99"):
                ratios = [of_captured[what] / of_plain[what] - 1 for of_plain, of_captured in found]
                low, middle, high = statistics.quantiles(ratios, n=4)
                print(f"{protocol}: {what} {middle:+.1%} if all are captured, quartiles {low:+.1%} to {high:+.1%}")
                if what == "CPU time of the event loop":
                    on_loop = middle
            loop = sum(one["loop's seconds"] for one, _ in found)
            writer = sum(one["others' seconds"] for pair in found for one in pair) / loop
            print(
                f"{protocol}: other threads take {writer:+.1%}; {SHARE:.0%} captured cost {SHARE * (on_loop + writer):.1%}"
            )


def _ended(capture: Path) -> bool:
    return counts(capture)["ended"] != ""


def _load(server: ServerProcess, protocol: str, request: Request, seconds: float) -> dict[str, float]:
    """Return what a load has shown. p99 in ms."""
    loop, others = _cpu_seconds(server.pid)
    done = closed(_target(server, protocol), [request], CLIENTS, seconds)
    loop_then, others_then = _cpu_seconds(server.pid)
    if done.failures or not done.requests:
        sys.exit(f"{done.failures} requests failed")
    return {
        "requests a second": done.per_second,
        "CPU time of the event loop": (loop_then - loop) / done.requests,
        "p99": done.p99_ms,
        "loop's seconds": loop_then - loop,
        "others' seconds": others_then - others,
    }


def _cpu_seconds(pid: int) -> tuple[float, float]:
    """Return the CPU time of a process's main thread, which runs the event loop, and of its other threads."""
    threads = {one.id: one.user_time + one.system_time for one in psutil.Process(pid).threads()}
    loop = threads.pop(pid)
    return loop, sum(threads.values())


def _target(server: ServerProcess, protocol: str) -> Target:
    return Target(server.grpc if protocol == "grpc" else server.http)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", action="store_true", help="measure the compiled modules")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each load")
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

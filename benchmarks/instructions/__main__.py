"""Count the instructions of one request on each path, and compare them with the record; exit status 1 at 10 % more.

python -m benchmarks.instructions [--record] [--compiled] [--only "gRPC*"]
"""

import argparse
import fnmatch
import itertools
import sys
import tempfile
from pathlib import Path

from benchmarks.instructions import record
from benchmarks.instructions.cases import CASES, Case
from benchmarks.instructions.clients import CLIENTS, LISTENERS
from benchmarks.instructions.counting import CountedServer, check_tools, count_program
from benchmarks.instructions.models import write_models
from serving.compiled.modules import build_folder

REQUESTS = 96  # the number of requests in each round
WARM_UP = 96
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the record anew instead of comparing with it")
    parser.add_argument("--only", default="*", help="a pattern of names: count these alone")
    parser.add_argument(
        "--compiled", action="store_true", help="count the compiled modules, which have their own record"
    )
    arguments = parser.parse_args()
    if arguments.compiled and not build_folder().is_dir():
        parser.error("these sources are not compiled: run `make compiled`")
    if arguments.record and arguments.only != "*":
        parser.error("all paths are recorded together: leave out --only")
    check_tools()
    cases = [case for case in CASES if fnmatch.fnmatch(case.name, arguments.only)]
    with tempfile.TemporaryDirectory(prefix="slipway-instructions-") as folder:
        yardstick = count_program(Path(folder), "benchmarks.instructions.yardstick")
        recorded = None if arguments.record else record.read(arguments.compiled)
        expected = record.expected_here(recorded, yardstick) if recorded else {}
        counted = count_cases(cases, Path(folder), expected, arguments.compiled)
    if recorded is None:
        record.write(record.Figures(record.python_build(), yardstick, counted), arguments.compiled)
        print(f"recorded in {record.path(arguments.compiled)}")
        return
    print(f"recorded under {recorded.python}, counted under {record.python_build()}:", end=" ")
    print(f"the yardstick took {yardstick / recorded.yardstick:.3f} of what it took there")
    if arguments.only == "*":
        _judge(counted, expected)


def count_cases(cases: list[Case], folder: Path, expected: dict[str, float], compiled: bool) -> dict[str, int]:
    """Return name of a path -> instructions for each request. Paths with the same flags share a server."""
    counted: dict[str, int] = {}
    repository = folder / "models"
    write_models(repository)
    print(f"{'path':44} {'server':>10} {'children':>10} {'sum':>10} {'recorded':>10}")
    for flags, group in itertools.groupby(cases, key=lambda case: case.flags):
        with CountedServer(repository, folder, *flags, compiled=compiled) as server:
            server.start_counting()
            for case in group:
                own, children = _count_case(case, server)
                counted[case.name] = own + children
                beside = f"{expected[case.name]:10,.0f}" if case.name in expected else ""
                print(f"{case.name:44} {own:10,} {children:10,} {own + children:10,} {beside}", flush=True)
    return counted


def _count_case(case: Case, server: CountedServer) -> tuple[int, int]:
    """Return the instructions for each request, of the server and of its children, in the round with the fewest: timers and
    heartbeats can only add to a round."""
    address = server.addresses[LISTENERS.get(case.protocol, "http")]
    client = CLIENTS[case.protocol](address, case.model, case.at_once)
    rounds = []
    try:
        for requests in (WARM_UP, *[REQUESTS] * ROUNDS):
            for _ in range(requests // case.at_once):
                client.ask()
            rounds.append(server.take_counts())
    finally:
        client.close()
    own, children = min(rounds[1:], key=sum)
    return own // REQUESTS, children // REQUESTS


def _judge(counted: dict[str, int], expected: dict[str, float]) -> None:
    """Print the result of the comparison. End the program with status 1 if a path costs too much."""
    for name, count in counted.items():
        if name in expected and count < expected[name] * (1 - record.TOLERANCE):
            print(f"{name}: {1 - count / expected[name]:.0%} fewer than recorded; record it, so that it stays so")
    faults = record.faults(counted, expected)
    if faults:
        print(*faults, sep="\n")
        sys.exit("A path costs more than it did. Where that is meant: make bench-instructions RECORD=yes")
    print("every path costs at most 10 % more than recorded")


if __name__ == "__main__":
    main()

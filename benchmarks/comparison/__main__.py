"""python -m benchmarks.comparison peers|handlers|triton|page: measure, and write docs/benchmarks.md.

An interrupted run continues where it stopped. `--quick` runs every case once, for a second, to check that all cases work.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.comparison import handlers, peers, triton
from benchmarks.comparison.measure import CannotMeasure
from benchmarks.comparison.record import Results
from benchmarks.folders import DOCS, TRIES
from benchmarks.loads.closed_loop import missing
from benchmarks.report.page import write_page
from benchmarks.servers.process import CannotStart


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with this program
    folder: Path = options.output or (TRIES if options.quick or options.only else DOCS)
    if options.suite != "page":
        if lacking := missing():
            raise SystemExit(f"The load comes from wrk and h2load: sudo apt-get install {' '.join(lacking)}")
        try:
            results = {"peers": _peers, "handlers": _handlers, "triton": _triton}[options.suite](options)
        except (CannotStart, CannotMeasure) as error:
            raise SystemExit(f"{error}\nThe same command goes on from here.") from None
        results.write(folder / "benchmarks" / f"{options.suite}.json")
    print(f"Written: {write_page(folder)}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=["peers", "handlers", "triton", "page"])
    parser.add_argument("--quick", action="store_true", help="one round of one second each: the figures mean nothing")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=int, help="length of each measurement")
    parser.add_argument("--only", nargs="+", default=[], help="peers: names of servers; triton: text of a case's name")
    parser.add_argument(
        "--frontend-workers", type=int, default=0, help="Slipway's flag (triton: a third server has it)"
    )
    parser.add_argument(
        "--output", type=Path, help=f"folder for benchmarks.md; docs, or {TRIES} with --quick or --only"
    )
    return parser


def _read_options(options: argparse.Namespace) -> dict[str, int]:
    known = ("rounds", "seconds") if options.suite == "handlers" else ("rounds", "seconds", "frontend_workers")
    values = {name: getattr(options, name) for name in known}
    return {name: value for name, value in values.items() if value}


def _peers(options: argparse.Namespace) -> Results:
    settings = peers.QUICK if options.quick else peers.Settings()
    return peers.run(replace(settings, only=tuple(options.only), **_read_options(options)))


def _handlers(options: argparse.Namespace) -> Results:
    if options.only and "torchserve" not in options.only:
        print("Handlers are left out: --only names no torchserve.")
        sys.exit()
    return handlers.run(replace(handlers.QUICK if options.quick else handlers.Settings(), **_read_options(options)))


def _triton(options: argparse.Namespace) -> Results:
    settings = triton.QUICK if options.quick else triton.Settings()
    return triton.run(replace(settings, only=" ".join(options.only), **_read_options(options)))


if __name__ == "__main__":
    main()

"""`make bench-dashboard`: measures the cost of pages with very many rows, and of many people who keep pages open.

python -m benchmarks.dashboard [pages] [viewers] [--models 500] [--releases 10000] [--people 50] [--viewers 50] [--seconds 60]
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.dashboard.filled import Filled
from benchmarks.dashboard.house import House
from benchmarks.dashboard.pages import measure_pages
from benchmarks.dashboard.viewers import measure_viewers

PARTS = ("pages", "viewers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help="both without")
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--releases", type=int, default=10_000)
    parser.add_argument("--people", type=int, default=50)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement of viewers")
    given = parser.parse_args()
    for part in given.parts or PARTS:
        with tempfile.TemporaryDirectory(prefix="slipway-dashboard-") as folder:
            if part == "pages":
                _print_pages(given, Path(folder))
            else:
                _print_viewers(given, Path(folder))


def _print_pages(given: argparse.Namespace, folder: Path) -> None:
    data = folder / "data"
    with Filled(data, given.models, given.releases, given.people) as filled:
        print(
            f"\n| page, {given.models} models, {given.releases} releases, {given.people} people | ms | CPU ms | queries | KB |"
        )
        print("| --- | --- | --- | --- | --- |")
        for page in measure_pages(filled):
            print(
                f"| `{page.name}` | {page.ms:.0f} | {page.cpu_ms:.0f} | {page.queries} | {page.bytes / 1000:.0f} |",
                flush=True,
            )


def _print_viewers(given: argparse.Namespace, folder: Path) -> None:
    with House(folder, given.models) as house, house.light_load():
        print(
            "\n| viewers | share of a core | messages a second | parts of pages a second |\n| --- | --- | --- | --- |"
        )
        for one in measure_viewers(house, given.viewers, given.seconds):
            row = f"| {one.viewers}: {one.name} | {one.share:.1%} | {one.messages:.0f} | {one.parts:.1f} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()

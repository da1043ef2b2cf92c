"""`make bench-dashboard`: what pages cost with very many models, and what people cost who watch live charts.

python -m benchmarks.dashboard [--models 500] [--viewers 50] [--seconds 20]
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.dashboard.house import House
from benchmarks.dashboard.pages import measure_pages
from benchmarks.dashboard.viewers import measure_viewers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=500)
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each measurement of viewers")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="slipway-dashboard-") as folder,
        House(Path(folder), arguments.models) as house,
        house.light_load(),
    ):
        _print_viewers(house, arguments.viewers, arguments.seconds)
        _print_pages(house, arguments.models)


def _print_viewers(house: House, viewers: int, seconds: float) -> None:
    print("| viewers | share of a core | messages a second | parts of pages a second |\n| --- | --- | --- | --- |")
    for one in measure_viewers(house, viewers, seconds):
        print(f"| {one.viewers}: {one.name} | {one.share:.1%} | {one.messages:.0f} | {one.parts:.0f} |", flush=True)


def _print_pages(house: House, models: int) -> None:
    print(f"\n| page, {models} models | ms | CPU ms | queries | KB |\n| --- | --- | --- | --- | --- |")
    for page in measure_pages(house):
        print(f"| `{page.name}` | {page.ms:.0f} | {page.cpu_ms:.0f} | {page.queries} | {page.bytes / 1024:.0f} |")


if __name__ == "__main__":
    main()

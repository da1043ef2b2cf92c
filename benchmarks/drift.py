"""Measures which shifts the data drift finds in windows of which size, and how often it is wrong, on generated traffic.

    make bench-drift    writes the tables of docs/drift.md

A window has 20 columns, of which one is shifted. The reference has 10,000 requests. A shift is found if that column drifted in
the window, at the level of the hundredth window, which is stricter than those before it.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of short vectors, more threads only wait for each other

import django
import numpy as np

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from dashboard.drift.comparison import ALPHA, compare, level_of  # noqa: E402
from dashboard.drift.features import CATEGORICAL, NUMERIC, VALUE, WORD, Column, Table  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "drift.md"
COLUMNS = 20
REFERENCE = 10_000
WINDOW_NUMBER = 100
SIZES = (200, 500, 1000, 2000, 5000)
SHIFTS = (0.1, 0.2, 0.3, 0.5, 1.0)  # standard deviations
MOVED = (0.05, 0.1, 0.15, 0.2, 0.25)  # of the share of one category in four
CATEGORIES = ("a", "b", "c", "d")
Make = Callable[[np.random.Generator, int, float], Table]


def numbers(random: np.random.Generator, rows: int, shift: float) -> Table:
    """Return columns of normal values; the first one is shifted."""
    values = random.normal(size=(rows, COLUMNS))
    values[:, 0] += shift
    return Table({Column("in.x", VALUE, place): values[:, place].tolist() for place in range(COLUMNS)}, rows)


def words(random: np.random.Generator, rows: int, moved: float) -> Table:
    """Return columns of four equally frequent categories; in the first one, a share moves from one category to another."""
    shares = np.array([0.25 + moved, 0.25 - moved, 0.25, 0.25])
    columns = {
        Column("in.x", WORD, place): random.choice(CATEGORIES, size=rows, p=None if place else shares).tolist()
        for place in range(COLUMNS)
    }
    return Table(columns, rows)


def found(make: Make, kind: str, size: int, shift: float, trials: int) -> float:
    """Return the share of windows in which the shifted column drifted."""
    random = np.random.default_rng(size)
    reference = make(random, REFERENCE, 0.0)
    kinds = dict.fromkeys(reference.values, kind)
    level = level_of(WINDOW_NUMBER)
    hits = ("in.x[0]" in compare(reference, make(random, size, shift), kinds, level).drifted for _ in range(trials))
    return sum(hits) / trials


def false_alarms(windows: int, size: int, seed: int) -> int:
    """Return how many of the windows of a clean sequence are false alarms; numbers and words take turns."""
    random = np.random.default_rng(seed)
    alarms = 0
    for make, kind in ((numbers, NUMERIC), (words, CATEGORICAL)):
        reference = make(random, REFERENCE, 0.0)
        kinds = dict.fromkeys(reference.values, kind)
        for number in range(1, windows // 2 + 1):
            alarms += bool(compare(reference, make(random, size, 0.0), kinds, level_of(number)).drifted)
    return alarms


def table(make: Make, kind: str, head: str, shifts: Sequence[float], trials: int) -> Iterator[str]:
    """Yield the lines of a table, with a row for each shift and a column for each size of a window."""
    yield f"| {head} | " + " | ".join(f"{size:,} requests" for size in SIZES) + " |"
    yield "| --- |" + " --- |" * len(SIZES)
    for shift in shifts:
        cells = [f"{found(make, kind, size, shift, trials):.0%}".replace("%", " %") for size in SIZES]
        yield f"| {shift:g} | " + " | ".join(cells) + " |"


def lines(trials: int, windows: int) -> Iterator[str]:
    yield f"Numeric columns, windows in which the shift was found, of {trials} each:\n"
    yield from table(numbers, NUMERIC, "shift, standard deviations", SHIFTS, trials)
    yield "\nCategorical columns with four categories, likewise:\n"
    yield from table(words, CATEGORICAL, "share that moves from one category to another", MOVED, trials)
    alarms = sum(false_alarms(windows, 1000, seed) for seed in range(2))
    yield (
        f"\nFalse alarms in {2 * windows:,} clean windows of 1,000 requests with {COLUMNS} columns: {alarms}. "
        f"The bound is a probability of {100 * ALPHA:g} % for one or more, over all windows of a monitor."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--windows", type=int, default=1000, help="of each of two clean sequences")
    given = parser.parse_args()
    written = "\n".join(lines(given.trials, given.windows))
    head, _, rest = PAGE.read_text().partition("<!-- detection: make bench-drift -->\n")
    _, end, tail = rest.partition("<!-- end -->")
    PAGE.write_text(f"{head}<!-- detection: make bench-drift -->\n{written}\n{end}{tail}")
    print(written)


if __name__ == "__main__":
    main()

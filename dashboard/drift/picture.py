"""Draws the two distributions of a column over each other, and the windows of a monitor as a row of bars."""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.models import DriftWindow
from dashboard.models.drift import ColumnDrift, Distribution

HEIGHT = 96  # pixels of a chart
_GAP = 0.15  # the share of a bin between two bars
_LEAST_BAR = 2.0  # pixels, so that a window without drift is seen


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin or category. x, width: per cent. reference, current: pixels of the bars. words: both shares, for the pointer."""

    x: float
    width: float
    reference: float
    current: float
    words: str

    @property
    def reference_y(self) -> float:
        return round(HEIGHT - self.reference, 2)

    @property
    def current_y(self) -> float:
        return round(HEIGHT - self.current, 2)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A column with its picture. first, last: the labels of the outermost bins; "" without a picture."""

    column: ColumnDrift
    bins: list[Bin]
    first: str
    last: str
    categories: list[tuple[str, float, float]]


@dataclass(frozen=True, slots=True)
class Step:
    """A window in the row of windows. x, width: per cent. height: pixels, by the share of drifted columns."""

    window: DriftWindow
    x: float
    width: float
    y: float
    height: float


def drawn_columns(pairs: Sequence[tuple[ColumnDrift, Distribution | None]]) -> list[Drawn]:
    """Return the columns with their pictures; a column without a distribution has no bins."""
    return [_drawn(column, found) for column, found in pairs]


def _drawn(column: ColumnDrift, found: Distribution | None) -> Drawn:
    if found is None or not found["labels"]:
        return Drawn(column, [], "", "", [])
    rows = list(zip(found["labels"], found["reference"], found["current"], strict=True))
    bins = bins_of(rows)
    if column["kind"] == "categorical":
        return Drawn(column, bins, "", "", rows)
    return Drawn(column, bins, rows[0][0].partition(" to ")[0], rows[-1][0].partition(" to ")[2], [])


def bins_of(rows: Sequence[tuple[str, float, float]], names: tuple[str, str] = ("reference", "current")) -> list[Bin]:
    """Return the bars of two distributions. rows: the label of each bin, and its two shares. names: of the distributions."""
    top = max(max(before, now) for _, before, now in rows) or 1.0
    wide = 100 / len(rows)
    return [
        Bin(
            round(place * wide + wide * _GAP / 2, 2),
            round(wide * (1 - _GAP), 2),
            round(HEIGHT * before / top, 2),
            round(HEIGHT * now / top, 2),
            f"{label}: {names[0]} {before:.1%}, {names[1]} {now:.1%}",
        )
        for place, (label, before, now) in enumerate(rows)
    ]


def row_of(windows: Sequence[DriftWindow]) -> list[Step]:
    """Return the windows as bars, the oldest first."""
    wide = 100 / max(len(windows), 1)
    steps = []
    for place, window in enumerate(sorted(windows, key=lambda one: one.number)):
        height = max(_LEAST_BAR, round(HEIGHT / 2 * window.share, 2))
        steps.append(
            Step(window, round(place * wide, 2), round(wide * (1 - _GAP), 2), round(HEIGHT / 2 - height, 2), height)
        )
    return steps

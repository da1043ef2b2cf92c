"""Draws the trials of a tuning: throughput to the right, p99 upwards, memory as the size, and the Pareto front as a line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dashboard.models import Tuning
from dashboard.models.measurement import LoadFigures
from dashboard.models.tuning import Trial
from dashboard.tuning.space import Difference, differences

HEIGHT = 240  # pixels
_EDGE = 14
_LABEL = 40  # the height that a label below its point needs, with the point
_ROOM = 1.08
_LEAST_RADIUS, _MOST_RADIUS = 4.0, 9.0
_LOGARITHMIC = 20.0  # the axis of the p99 is logarithmic if its values differ by more than this factor


@dataclass(frozen=True, slots=True)
class Row:
    """A trial of the search with its number from 1. role: "present", "chosen" or "". front: whether no other trial has more
    requests a second and a lower p99."""

    number: int
    trial: Trial
    changes: list[Difference]
    role: str
    front: bool

    @property
    def figures(self) -> LoadFigures | None:
        return self.trial["figures"]


@dataclass(frozen=True, slots=True)
class Point:
    """A row in the plot. x: per cent of the width. y, radius: pixels."""

    row: Row
    x: float
    y: float
    radius: float

    @property
    def text_y(self) -> float:
        """The label of the chosen setting is below its point, because the point is often beside that of the present one."""
        below = self.row.role == "chosen" and self.y < HEIGHT - _LABEL
        return self.y + self.radius + 14 if below else self.y - self.radius - 5

    @property
    def anchor(self) -> str:
        """The end of the label that is at the point, so that it stays inside the plot."""
        return "start" if self.x < 15 else "end" if self.x > 85 else "middle"


@dataclass(frozen=True, slots=True)
class Plot:
    """most_per_second, most_ms, least_ms: the values at the edges. limit: the height of the limit of the p99, None for none."""

    points: list[Point]
    front: list[tuple[Point, Point]]
    most_per_second: float
    least_ms: float
    most_ms: float
    logarithmic: bool
    limit: float | None


def rows_of(tuning: Tuning) -> list[Row]:
    """Return the trials of the search in their order."""
    trials = [trial for trial in tuning.trials if not trial["round"]]
    places = [_place(trial) for trial in trials]
    found = []
    for number, trial in enumerate(trials, 1):
        here = places[number - 1]
        front = here is not None and not any(_dominates(other, here) for other in places if other is not None)
        role = "present" if trial["setting"] == tuning.present else ""
        role = "chosen" if tuning.chosen and trial["setting"] == tuning.chosen and not role else role
        found.append(Row(number, trial, differences(tuning, trial["setting"]), role, front))
    return found


def plot_of(tuning: Tuning, rows: Sequence[Row]) -> Plot | None:
    """Return the plot, or None without a trial that has figures."""
    placed = [(row, place) for row in rows if (place := _place(row.trial)) is not None]
    if not placed:
        return None
    rates, latencies = [rate for _, (rate, _) in placed], [ms for _, (_, ms) in placed]
    logarithmic = max(latencies) > _LOGARITHMIC * min(latencies)
    right, top = max(rates) * _ROOM, max(latencies) * _ROOM
    bottom = min(latencies) / _ROOM if logarithmic else 0.0
    largest = max((_memory(row) for row, _ in placed), default=0)
    points = [
        Point(row, round(100 * rate / right, 2), _y(ms, bottom, top, logarithmic), _radius(_memory(row), largest))
        for row, (rate, ms) in placed
    ]
    front = sorted((point for point in points if point.row.front), key=lambda point: point.x)
    limit = tuning.plan["p99_ms"] if tuning.plan["goal"] != "latency" else math.inf
    shown = _y(limit, bottom, top, logarithmic) if bottom < limit < top else None
    return Plot(points, list(pairwise(front)), right, bottom, top, logarithmic, shown)


def _place(trial: Trial) -> tuple[float, float] | None:
    """Return (requests a second, p99 in ms) of a trial, None if unknown."""
    figures = trial["figures"]
    if figures is None or figures["p99_ms"] is None or figures["p99_ms"]["value"] <= 0:
        return None
    return figures["per_second"]["value"], figures["p99_ms"]["value"]


def _dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] >= other[0] and one[1] <= other[1]


def _memory(row: Row) -> int:
    return (row.figures["memory_bytes"] or 0) if row.figures is not None else 0


def _radius(memory: int, largest: int) -> float:
    share = memory / largest if largest else 0.0
    return round(_LEAST_RADIUS + share * (_MOST_RADIUS - _LEAST_RADIUS), 1)


def _y(ms: float, bottom: float, top: float, logarithmic: bool) -> float:
    share = math.log(ms / bottom) / math.log(top / bottom) if logarithmic else (ms - bottom) / (top - bottom)
    return round(HEIGHT - _EDGE - share * (HEIGHT - 2 * _EDGE), 2)

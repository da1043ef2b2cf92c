"""Draws a measurement: latency and throughput over the loads, and the parts of the mean latency as one bar for each load
and for each batch size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dashboard.measurements.figures import PARTS
from dashboard.models import Measurement
from dashboard.models.measurement import BatchTimes, Figure, LoadFigures, load_in_words

HEIGHT = 160  # pixels of a chart
_EDGE = 10  # pixels above the highest and below the lowest value
_ROOM = 1.05
_EXECUTION = ("input", "compute", "output")  # the parts of an execution
_LATENCIES = (("p50_ms", "p50"), ("p95_ms", "p95"), ("p99_ms", "p99"))


@dataclass(frozen=True, slots=True)
class Point:
    """A value of a series. x: per cent of the width. y, low, high: pixels from above. low, high: the ends of its spread."""

    x: float
    y: float
    low: float
    high: float
    figure: Figure


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart. place: its number, from which its colour follows."""

    label: str
    place: int
    points: list[Point]

    @property
    def segments(self) -> list[tuple[Point, Point]]:
        return list(pairwise(self.points))


@dataclass(frozen=True, slots=True)
class Chart:
    """loads: the position of each load in per cent, and its words. top: the value at the upper edge."""

    series: list[Series]
    loads: list[tuple[float, str]]
    top: float


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a bar. x, width: per cent."""

    name: str
    x: float
    width: float
    figure: Figure


@dataclass(frozen=True, slots=True)
class Bar:
    """mean: the mean latency, of which the parts are known; in ms."""

    load: str
    parts: list[Part]
    mean: Figure


@dataclass(frozen=True, slots=True)
class BatchBar:
    """The mean time of one execution with a batch size. executions: their number."""

    size: int
    executions: int
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class BatchBars:
    load: str
    bars: list[BatchBar]


def latency_chart(measurement: Measurement) -> Chart:
    """Return the chart of the latencies over the loads."""
    return _chart(
        measurement, [(label, [_figure(row, name) for row in measurement.loads]) for name, label in _LATENCIES]
    )


def throughput_chart(measurement: Measurement) -> Chart:
    """Return the chart of the requests a second over the loads."""
    return _chart(measurement, [("Requests a second", [row["per_second"] for row in measurement.loads])])


def bars(measurement: Measurement) -> list[Bar]:
    """Return the bar of each load whose parts are known; all bars have the same scale."""
    known = [(row, [(part, row["split"][part]) for part in PARTS if part in row["split"]]) for row in measurement.loads]
    widest = max((sum(figure["value"] for _, figure in parts) for _, parts in known), default=0.0)
    return [_bar(measurement, row, parts, widest) for row, parts in known if parts and widest]


def batch_bars(measurement: Measurement) -> list[BatchBars]:
    """Return the bars of each load that has batches: the parts of one execution with each batch size, on one scale."""
    executions = [[_parts_of(batch) for batch in row["batches"]] for row in measurement.loads]
    widest = max((sum(map(_value, parts)) for batches in executions for parts in batches), default=0.0)
    return [
        BatchBars(
            load_in_words(measurement.plan, row["load"]),
            [
                BatchBar(batch["size"], batch["executions"], _drawn(zip(_EXECUTION, parts, strict=True), widest))
                for batch, parts in zip(row["batches"], batches, strict=True)
            ],
        )
        for row, batches in zip(measurement.loads, executions, strict=True)
        if batches and widest
    ]


def _parts_of(batch: BatchTimes) -> list[Figure]:
    return [Figure(value=value, spread=None) for value in (batch["input"], batch["compute"], batch["output"])]


def _value(figure: Figure) -> float:
    return figure["value"]


def _bar(measurement: Measurement, row: LoadFigures, parts: Sequence[tuple[str, Figure]], widest: float) -> Bar:
    whole = sum(figure["value"] for _, figure in parts)
    spread = row["mean_ms"]["spread"] if row["mean_ms"] is not None else None
    mean = Figure(value=whole, spread=spread)
    return Bar(load_in_words(measurement.plan, row["load"]), _drawn(parts, widest), mean)


def _drawn(parts: Iterable[tuple[str, Figure]], widest: float) -> list[Part]:
    """Return the parts of a bar, one after the other."""
    drawn: list[Part] = []
    at = 0.0
    for name, figure in parts:
        width = 100 * figure["value"] / widest
        drawn.append(Part(name, round(at, 2), round(width, 2), figure))
        at += width
    return drawn


def _figure(row: LoadFigures, name: str) -> Figure | None:
    found: Figure | None = row[name]  # type: ignore[literal-required]  # one of _LATENCIES
    return found


def _chart(measurement: Measurement, lines: Sequence[tuple[str, Sequence[Figure | None]]]) -> Chart:
    count = max(len(measurement.loads), 1)
    places = [round(100 * (index + 0.5) / count, 2) for index in range(len(measurement.loads))]
    ends = [one["value"] + (one["spread"] or 0.0) for _, line in lines for one in line if one is not None]
    top = max(ends, default=0.0) * _ROOM
    series = [
        Series(label, place, [_point(x, one, top) for x, one in zip(places, line, strict=True) if one is not None])
        for place, (label, line) in enumerate(lines, 1)
    ]
    words = [load_in_words(measurement.plan, row["load"]) for row in measurement.loads]
    return Chart(series, list(zip(places, words, strict=True)), top)


def _point(x: float, figure: Figure, top: float) -> Point:
    value, spread = figure["value"], figure["spread"] or 0.0
    return Point(x, _y(value, top), _y(max(value - spread, 0.0), top), _y(value + spread, top), figure)


def _y(value: float, top: float) -> float:
    share = value / top if top else 0.0
    return round(HEIGHT - _EDGE - share * (HEIGHT - 2 * _EDGE), 2)

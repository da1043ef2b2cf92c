"""Compares measurements load by load, with the spread of each difference: two of one model, or several of any models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.measurements.plan import ENCODINGS, INPUTS, LOOPS, WHERE
from dashboard.models import Measurement
from dashboard.models.measurement import Figure, LoadFigures, load_in_words
from repository.core.quantities import three_digits

# Figure -> its label, and whether more of it is better.
_COMPARED = {
    "per_second": ("Throughput", True),
    "p50_ms": ("p50", False),
    "p95_ms": ("p95", False),
    "p99_ms": ("p99", False),
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one load in both measurements.

    change: the relative change from the first to the second, None if unknown. spread: half of its 95 % confidence interval.
    better: whether the second is better beyond the spread; None if the difference is not beyond it.
    """

    load: float
    name: str
    label: str
    first: Figure | None
    second: Figure | None
    change: float | None
    spread: float | None
    better: bool | None

    @property
    def words(self) -> str:
        """The difference in words: "faster by 12 % ± 3 %", or "3.1 ± 0.2 times as long"."""
        if self.change is None:
            return "not known for both"
        if self.spread is None:
            return "too few windows to tell"
        if self.better is None:
            return "no difference beyond the spread"
        if self.change >= 1:
            times = f"{three_digits(1 + self.change)} ± {three_digits(self.spread)} times as"
            return f"{times} many requests a second" if self.name == "per_second" else f"{times} long"
        amount = f"{three_digits(abs(self.change) * 100)} % ± {three_digits(self.spread * 100)} %"
        if self.name == "per_second":
            return f"{amount} {'more' if self.better else 'fewer'} requests a second"
        return f"{'faster' if self.better else 'slower'} by {amount}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """unlike: sentences about the differences of plan and machine, because of which the figures cannot be compared directly.
    missing: the loads that only one of the two has."""

    first: Measurement
    second: Measurement
    differences: list[Difference]
    unlike: list[str]
    missing: list[float]


@dataclass(frozen=True, slots=True)
class Place:
    """A measurement at one load. differences: from the first measurement that has this load; [] for that one itself."""

    measurement: Measurement
    figures: LoadFigures
    differences: list[Difference]


@dataclass(frozen=True, slots=True)
class LoadComparison:
    """All measurements at one load. words: "4 clients" or "200/s"."""

    load: float
    words: str
    places: list[Place]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Several measurements, also of different models. unlike: as in Comparison."""

    measurements: list[Measurement]
    loads: list[LoadComparison]
    unlike: list[str]


def compare(first: Measurement, second: Measurement) -> Comparison:
    """Return the differences of the second measurement from the first one."""
    before, after = _by_load(first), _by_load(second)
    both = sorted(before.keys() & after.keys()) if first.plan["loop"] == second.plan["loop"] else []
    differences = [difference(name, before[load], after[load]) for load in both for name in _COMPARED]
    missing = sorted((before.keys() | after.keys()) - set(both))
    return Comparison(first, second, differences, _unlike(first, second), missing)


def side_by_side(measurements: Sequence[Measurement]) -> SideBySide:
    """Return the loads of measurements of any models, each with the difference from the first measurement that has the load."""
    loads: dict[tuple[str, float], list[Place]] = {}
    for measurement in measurements:
        for figures in measurement.loads:
            places = loads.setdefault((measurement.plan["loop"], figures["load"]), [])
            differences = (
                [difference(name, places[0].figures, figures) for name in ("per_second", "p99_ms")] if places else []
            )
            places.append(Place(measurement, figures, differences))
    unlike = [
        f"Measurements {measurements[0].pk} and {other.pk}: {one[0].lower()}{one[1:]}"
        for other in measurements[1:]
        for one in _unlike(measurements[0], other)
    ]
    rows = [
        LoadComparison(load, load_in_words(places[0].measurement.plan, load), places)
        for (_, load), places in sorted(loads.items())
    ]
    return SideBySide(list(measurements), rows, unlike)


def difference(name: str, before: LoadFigures, after: LoadFigures) -> Difference:
    """Return the difference of one figure."""
    label, more_is_better = _COMPARED[name]
    first: Figure | None = before[name]  # type: ignore[literal-required]  # a key of _COMPARED
    second: Figure | None = after[name]  # type: ignore[literal-required]
    change = spread = better = None
    if first is not None and second is not None and first["value"] and second["value"]:
        ratio = second["value"] / first["value"]
        change = ratio - 1
        if first["spread"] is not None and second["spread"] is not None:
            spread = ratio * math.hypot(first["spread"] / first["value"], second["spread"] / second["value"])
            if abs(change) > spread:
                better = (change > 0) == more_is_better
    return Difference(before["load"], name, label, first, second, change, spread, better)


def _by_load(measurement: Measurement) -> dict[float, LoadFigures]:
    return {figures["load"]: figures for figures in measurement.loads}


def _unlike(first: Measurement, second: Measurement) -> list[str]:
    one, other = first.plan, second.plan
    found = [
        f"{label}: {words[one[name]]} in the one, {words[other[name]]} in the other"  # type: ignore[literal-required]
        for name, label, words in (
            ("loop", "The loops differ", LOOPS),
            ("encoding", "The encodings differ", ENCODINGS),
            ("inputs", "The inputs differ", INPUTS),
            ("where", "The servers differ", WHERE),
        )
        if one[name] != other[name]  # type: ignore[literal-required]
    ]
    if one["rows"] != other["rows"]:
        found.append(f"The requests differ: {one['rows']} rows in the one, {other['rows']} in the other")
    if any(first.machine.get(name) != second.machine.get(name) for name in ("processor", "cores", "gpus")):
        found.append("The machines differ")
    return found

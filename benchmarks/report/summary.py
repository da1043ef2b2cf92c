"""Summarizes rounds as one figure with its spread."""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.comparison.record import Measurement, Results


@dataclass(frozen=True)
class Figure:
    """The median of the rounds, and the lowest and the highest round."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Figure":
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])


@dataclass(frozen=True)
class Row:
    """All rounds of one server under one load."""

    rounds: tuple[Measurement, ...]

    def figure(self, read: Callable[[Measurement], float]) -> Figure:
        return Figure.of(read(one) for one in self.rounds)

    @property
    def per_second(self) -> Figure:
        return self.figure(lambda one: one.per_second)

    @property
    def p50(self) -> float:
        return self.figure(lambda one: one.p50_ms).value

    @property
    def p95(self) -> float:
        return self.figure(lambda one: one.p95_ms).value

    @property
    def p99(self) -> Figure:
        return self.figure(lambda one: one.p99_ms)

    @property
    def cpu_us(self) -> float:
        return self.figure(lambda one: one.cpu_us).value

    @property
    def root_us(self) -> float:
        return self.figure(lambda one: one.root_us).value

    @property
    def offered(self) -> float:
        return self.figure(lambda one: one.offered).value

    @property
    def failures(self) -> int:
        return sum(one.failures for one in self.rounds)


def rows(results: Results) -> dict[tuple[str, str, str], Row]:
    """Return (server, case, load) -> its rounds, in the order in which they were first measured."""
    found: dict[tuple[str, str, str], list[Measurement]] = {}
    for one in results:
        found.setdefault((one.key.server, one.key.case, one.key.load), []).append(one)
    return {key: Row(tuple(sorted(ones, key=lambda one: one.key.round))) for key, ones in found.items()}


def ratio(row: Row, base: Row) -> Figure:
    """Return the throughput of one row as a multiple of another row's: the ratio of the medians, and the spread of rounds."""
    mates = {one.key.round: one.per_second for one in base.rounds}
    each = [one.per_second / mates[one.key.round] for one in row.rounds if mates.get(one.key.round)]
    if not each or not base.per_second.value:
        return Figure(float("nan"), float("nan"), float("nan"))
    return Figure(row.per_second.value / base.per_second.value, min(each), max(each))

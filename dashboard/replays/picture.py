"""Draws a replay: the latencies before and after over each other, and how much each output differs as a row of bars."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.drift.picture import Bin, bins_of
from dashboard.models.replay import OutputFigures, ReplayFigures
from repository.core.histogram import BOUNDS_US, quantiles_ms
from repository.core.quantities import latency

QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
BIN_NAMES = ("Equal", "Within the tolerance", "Up to 10 times it", "Up to 100 times it", "More", "Not comparable")
_BINS = 24


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A quantile before and after, in ms. times: after divided by before."""

    name: str
    captured: float
    replayed: float
    times: float | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies as a table and as two distributions. first, last: the ends of the axis, in words."""

    rows: list[LatencyRow]
    bins: list[Bin]
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class OutputBars:
    """One output with its bars: the name of each, its requests, and its share in per cent."""

    name: str
    figures: OutputFigures
    bars: list[tuple[str, int, float]]


def latencies_of(figures: ReplayFigures) -> Latencies | None:
    """Return the latencies in the server before and after; None before the first answers."""
    captured, replayed = (_counts(figures[side]) for side in ("captured", "replayed"))
    if not captured or not replayed:
        return None
    order = [quantile for _, quantile in QUANTILES]
    pairs = zip(QUANTILES, quantiles_ms(captured, order), quantiles_ms(replayed, order), strict=True)
    rows = [LatencyRow(name, a or 0.0, b or 0.0, (b or 0.0) / a if a else None) for (name, _), a, b in pairs]
    low = max(BOUNDS_US[min(*captured, *replayed) - 1] if min(*captured, *replayed) else 1, 1)
    high = BOUNDS_US[max(*captured, *replayed)]
    edges = [low * (high / low) ** (place / _BINS) for place in range(_BINS + 1)]
    shares = [_shares(counts, low, high) for counts in (captured, replayed)]
    labels = [f"{latency(edges[place] / 1e3)} to {latency(edges[place + 1] / 1e3)}" for place in range(_BINS)]
    bins = bins_of(list(zip(labels, *shares, strict=True)), ("captured", "replayed"))
    return Latencies(rows, bins, latency(low / 1e3), latency(high / 1e3))


def output_bars(figures: ReplayFigures) -> list[OutputBars]:
    return [
        OutputBars(
            name,
            one,
            [
                (label, count, 100 * count / one["compared"])
                for label, count in zip(BIN_NAMES, one["bins"], strict=True)
            ],
        )
        for name, one in figures["outputs"].items()
    ]


def _counts(histogram: Mapping[str, int]) -> dict[int, int]:
    return {int(bucket): count for bucket, count in histogram.items()}


def _shares(counts: Mapping[int, int], low: float, high: float) -> list[float]:
    """Return the share of the requests in each of _BINS bins, whose widths are equal on a logarithmic axis."""
    found, total, wide = [0.0] * _BINS, sum(counts.values()), math.log(high / low) or 1.0
    for bucket, count in counts.items():
        middle = (BOUNDS_US[bucket] + (BOUNDS_US[bucket - 1] if bucket else 0)) / 2
        place = int(_BINS * math.log(max(middle, low) / low) / wide)
        found[min(place, _BINS - 1)] += count / total
    return found

"""Draws the metric of each version as a point with its interval, all on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from dashboard.models import TruthMetric
from dashboard.shared.choices import TruthKind
from dashboard.truth.selectors import VersionTruth

_EDGE = 3.0  # per cent of the width beside the outermost values


@dataclass(frozen=True, slots=True)
class Bar:
    """A version. words: the value with its interval. at, low, width: per cent of the width; None without an interval."""

    truth: VersionTruth
    words: str
    at: float | None
    low: float | None
    width: float | None


def bars_of(metric: TruthMetric, rows: Sequence[VersionTruth]) -> list[Bar]:
    """Return the versions in their order."""
    known = [row.estimate for row in rows if row.estimate is not None]
    least = min((one.low for one in known), default=0.0)
    most = max((one.high for one in known), default=1.0)
    return [_bar(metric, row, least, (most - least) or 1.0) for row in rows]


def _bar(metric: TruthMetric, row: VersionTruth, least: float, whole: float) -> Bar:
    def place(value: float) -> float:
        return round(_EDGE + (100 - 2 * _EDGE) * (value - least) / whole, 2)

    estimate = row.estimate
    if row.value is None:
        return Bar(row, "–", None, None, None)
    if estimate is None:
        return Bar(row, _words(metric, row.value), None, None, None)
    low, high = place(estimate.low), place(estimate.high)
    words = f"{_words(metric, row.value)} ({_words(metric, estimate.low)} to {_words(metric, estimate.high)})"
    return Bar(row, words, place(row.value), low, round(high - low, 2))


def _words(metric: TruthMetric, value: float) -> str:
    return f"{100 * value:.3g} %" if metric.kind == TruthKind.ACCURACY else f"{value:.3g}"

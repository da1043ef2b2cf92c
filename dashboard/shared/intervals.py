"""How far the arms of a rollout are apart, and within what bounds: those that hold the true value in 95 of 100 cases.

It is for requests that have nothing to do with each other. Sources: Wilson (1927) for a share; the binomial distribution of
ranks for a quantile; Newcombe (1998, method 10; MOVER) for the difference of two values with bounds of their own.
"""

import math
from dataclasses import dataclass

from repository.core.histogram import Counts, quantiles_ms

_DEVIATIONS = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its bounds."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether it is above or below zero by more than chance."""
        return self.low > 0 or self.high < 0


def share_of(count: int, of: int) -> Estimate | None:
    """Return a share from 0 to 1; None of nothing."""
    if not of:
        return None
    share, square = count / of, _DEVIATIONS**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = _DEVIATIONS * math.sqrt(share * (1 - share) / of + square / (4 * of * of)) / (1 + square / of)
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def quantile_of(counts: Counts, quantile: float) -> Estimate | None:
    """Return a quantile (0 to 1) of a histogram in ms; None of nothing."""
    total = sum(counts.values())
    half = _DEVIATIONS * math.sqrt(quantile * (1 - quantile) / total) if total else 0.0
    low, value, high = quantiles_ms(counts, [max(0.0, quantile - half), quantile, min(1.0, quantile + half)])
    return None if low is None or value is None or high is None else Estimate(value, low, high)


def difference(candidate: Estimate | None, stable: Estimate | None) -> Estimate | None:
    """Return by how much the candidate's value is above the stable one's; None where one is not known."""
    if candidate is None or stable is None:
        return None
    value = candidate.value - stable.value
    below = math.hypot(candidate.value - candidate.low, stable.high - stable.value)
    above = math.hypot(candidate.high - candidate.value, stable.value - stable.low)
    return Estimate(value, value - below, value + above)

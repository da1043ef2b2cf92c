"""Confidence intervals (95 %) for the figures of a rollout's arms and of versions, and for their difference.

They assume independent requests. The interval of a share is Wilson's (1927). The interval of a quantile uses the binomial
distribution of ranks. The interval of a difference is Newcombe's (1998, method 10, also called MOVER).
"""

import math
from dataclasses import dataclass

from repository.core.histogram import Counts, quantiles_ms

_DEVIATIONS = 1.96  # of the normal distribution, for 95 %
STRICT = 3.29  # for 99.9 %
LEAST_VALUES = 30  # of a mean with an interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its bounds."""

    value: float
    low: float
    high: float

    @property
    def clear(self) -> bool:
        """True if the interval excludes zero."""
        return self.low > 0 or self.high < 0


def share_of(count: int, total: int, deviations: float = _DEVIATIONS) -> Estimate | None:
    """Return a share from 0 to 1, or None if `total` is 0. deviations: half the width of the interval."""
    if not total:
        return None
    share, square = count / total, deviations**2
    middle = (share + square / (2 * total)) / (1 + square / total)
    half = deviations * math.sqrt(share * (1 - share) / total + square / (4 * total * total)) / (1 + square / total)
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def mean_of(count: int, mean: float, mean_square: float, deviations: float = _DEVIATIONS) -> Estimate | None:
    """Return a mean by the central limit theorem, or None for fewer than 30 values. mean_square: the mean of the squares."""
    if count < LEAST_VALUES:
        return None
    half = deviations * math.sqrt(max(0.0, mean_square - mean * mean) / (count - 1))
    return Estimate(mean, mean - half, mean + half)


def quantile_of(counts: Counts, quantile: float) -> Estimate | None:
    """Return a quantile (0 to 1) of a histogram in ms, or None if the histogram is empty."""
    total = sum(counts.values())
    half = _DEVIATIONS * math.sqrt(quantile * (1 - quantile) / total) if total else 0.0
    low, value, high = quantiles_ms(counts, [max(0.0, quantile - half), quantile, min(1.0, quantile + half)])
    return None if low is None or value is None or high is None else Estimate(value, low, high)


def difference(candidate: Estimate | None, stable: Estimate | None) -> Estimate | None:
    """Return the candidate's value minus the stable one's, or None if either value is unknown."""
    if candidate is None or stable is None:
        return None
    value = candidate.value - stable.value
    below = math.hypot(candidate.value - candidate.low, stable.high - stable.value)
    above = math.hypot(candidate.high - candidate.value, stable.value - stable.low)
    return Estimate(value, value - below, value + above)

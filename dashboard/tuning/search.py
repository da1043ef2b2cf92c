"""The search: one coordinate descent from the present setting, then the settings that promise most by a Gaussian process.

The search has no state: the results so far decide the next setting. So it continues after any interruption.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Setting = Mapping[str, str]  # axis -> value
Numbers = NDArray[np.float64]
Values = tuple[str, ...]  # the values of a setting in the order of the axes

MARGIN = 0.01  # a smaller gain is noise, and the present value stays
_FAR = 0.5  # a trial that breaks a limit by more than half is not continued
_LENGTH = 0.6  # the distance on an axis, whose values go from 0 to 1, at which results are no longer much alike
_NOISE = 0.03  # the standard deviation of a repeated trial, as a logarithm
_LEAST_SCALE = 0.1  # results that differ by less are alike
_DISTANCE = 3  # predictions are made for settings with so many other values than the best one


class Axis(NamedTuple):
    """One dimension. values: ascending, with the present one."""

    name: str
    values: Sequence[str]


@dataclass(frozen=True, slots=True)
class Score:
    """The result of a trial. fits: whether the trial kept the limits of the objective. value: higher is better; of a trial that
    did not keep the limits, how far it is from them, as a negative number. spread: half of the 95 % confidence interval."""

    fits: bool
    value: float
    spread: float = 0.0

    def above(self, other: "Score", margin: float = 0.0) -> bool:
        """Whether this result is better by more than a share of the other one."""
        if self.fits != other.fits:
            return self.fits
        if math.isinf(other.value):
            return self.value > other.value
        return self.value > other.value + abs(other.value) * margin

    def clearly_below(self, other: "Score") -> bool:
        """Whether this result is worse beyond the spread of both."""
        if self.fits and other.fits:
            return self.value + self.spread < other.value - other.spread
        return other.fits and not self.fits and -self.value > _FAR


FAILED = Score(False, -math.inf)


class Step(NamedTuple):
    """The state of a search. best: the best known setting. next: the setting to try now; None at the end."""

    best: dict[str, str]
    next: dict[str, str] | None


class _Missing(Exception):
    def __init__(self, values: Values) -> None:
        super().__init__()
        self.values = values


def search_step(axes: Sequence[Axis], present: Setting, known: Mapping[Values, Score], most: int) -> Step:
    """Return the best setting so far, and the one to try next. known: the results. most: the number of results at the end."""
    names = [axis.name for axis in axes]
    start = tuple(present[name] for name in names)
    best = start
    for values, score in known.items():
        if best in known and score.above(known[best]):
            best = values
    found = _next(axes, start, best, known) if len(known) < most else None
    return Step(dict(zip(names, best, strict=True)), None if found is None else dict(zip(names, found, strict=True)))


def _next(axes: Sequence[Axis], start: Values, best: Values, known: Mapping[Values, Score]) -> Values | None:
    def score(values: Values) -> Score:
        if values not in known:
            raise _Missing(values)
        return known[values]

    try:
        _descend(axes, start, score)
    except _Missing as missing:
        return missing.values
    untried = [values for values in _around(axes, best) if values not in known]
    if not untried:
        return None
    return untried[int(_improvement(axes, known)(untried).argmax())]


def _descend(axes: Sequence[Axis], start: Values, score: Callable[[Values], Score]) -> None:
    """Move along each axis once, from the best setting along the axes before it."""
    at = start
    score(at)
    for place, axis in enumerate(axes):
        at = _along(axis, place, at, score)


def _along(axis: Axis, place: int, at: Values, score: Callable[[Values], Score]) -> Values:
    """Return the best setting along one axis: upwards while it gets better, and downwards if the first step up did not."""
    for way in (1, -1):
        best = at
        here = axis.values.index(at[place])
        while 0 <= here + way < len(axis.values):
            ahead = _with(at, place, axis.values[here + way])
            if not score(ahead).above(score(best), MARGIN):
                break
            best, here = ahead, here + way
        if best != at:
            return best
    return at


def _around(axes: Sequence[Axis], at: Values) -> Iterator[Values]:
    """Yield the settings that differ from `at` in one or two values."""
    for count in range(1, _DISTANCE + 1):
        for places in itertools.combinations(range(len(axes)), count):
            for values in itertools.product(*(axes[place].values for place in places)):
                found = at
                for place, value in zip(places, values, strict=True):
                    found = _with(found, place, value)
                if sum(one != other for one, other in zip(found, at, strict=True)) == count:
                    yield found


def _improvement(axes: Sequence[Axis], known: Mapping[Values, Score]) -> Callable[[Sequence[Values]], Numbers]:
    """Return a function: settings -> the expected improvement of each over the best result.

    A Gaussian process predicts the logarithm of a result. Its kernel is a product of a Matern 3/2 kernel for each axis, in
    which neighbouring values of an axis are alike. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
    2006, 2.2 and 4.2; the improvement: Jones, Schonlau and Welch, Efficient Global Optimization, 1998.
    """
    results = _logarithms(known)
    logarithms = np.array(list(results.values()))
    mean, scale = logarithms.mean(), max(logarithms.std(), _LEAST_SCALE)
    standard = (logarithms - mean) / scale
    best = standard.max()
    tried = _places(axes, list(results))
    covariance = _kernel(tried, tried) + (_NOISE / scale) ** 2 * np.eye(len(tried))
    weights = np.linalg.solve(covariance, standard)

    def improvement(settings: Sequence[Values]) -> Numbers:
        between = _kernel(_places(axes, settings), tried)
        gain = between @ weights - best
        variance = 1.0 - np.sum(between * np.linalg.solve(covariance, between.T).T, axis=1)
        deviation = np.sqrt(np.maximum(variance, 1e-9))
        ratio = gain / deviation
        density = np.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi)
        below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in ratio])
        expected: Numbers = gain * below + deviation * density
        return expected

    return improvement


def _places(axes: Sequence[Axis], settings: Sequence[Values]) -> Numbers:
    """Return the places of values on their axes, from 0 to 1: an array of settings by axes."""
    return np.array(
        [
            [axis.values.index(value) / max(1, len(axis.values) - 1) for axis, value in zip(axes, values, strict=True)]
            for values in settings
        ]
    )


def _kernel(one: Numbers, other: Numbers) -> Numbers:
    """Return how alike settings are, from 0 to 1: an array of the settings of `one` by those of `other`."""
    distance = math.sqrt(3) * np.abs(one[:, None, :] - other[None, :, :]) / _LENGTH
    alike: Numbers = np.prod((1 + distance) * np.exp(-distance), axis=-1)
    return alike


def _logarithms(known: Mapping[Values, Score]) -> dict[Values, float]:
    """Return a number for each result: logarithms of those that keep the limits, and lower ones for the others."""
    fitting = [_logarithm(score.value) for score in known.values() if score.fits]
    floor = min(fitting, default=0.0)
    return {
        values: _logarithm(score.value) if score.fits else floor - math.log1p(min(-score.value, 10.0))
        for values, score in known.items()
    }


def _logarithm(value: float) -> float:
    return math.log(value) if value > 0 else -math.log(max(-value, 1e-9))


def _with(values: Values, place: int, value: str) -> Values:
    return (*values[:place], value, *values[place + 1 :])

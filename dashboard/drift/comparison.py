"""Compares the current window with the reference, column by column, with the tests of scipy.

The words are those of Evidently and NannyML: reference, current, drift score, drifted column, share of drifted columns.

* Numeric columns: the two-sample test of Kolmogorov and Smirnov; the drift score is Wasserstein's distance, divided by the
  standard deviation of the reference.
* Categorical columns: the chi-square test of homogeneity; the drift score is the distance of Jensen and Shannon.
* The p-values of a window are corrected for the number of columns by Benjamini and Yekutieli's method, which holds however the
  columns depend on each other.
* A column has drifted if its corrected p-value is at most the level of the window, and its drift score at least the threshold:
  more than chance, and enough to matter.
* Windows repeat, so the levels of all windows add up to `alpha`: however many windows are compared with a reference from which
  nothing has drifted, the probability of one or more false alarms is at most `alpha`.
"""

import importlib.util
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dashboard.drift.features import CATEGORICAL, NUMERIC, Column, Numbers, Table
from dashboard.models.drift import ColumnDrift, Distribution
from dashboard.shared.exceptions import Invalid

ALPHA = 0.01  # the probability of a false alarm over all windows
THRESHOLD = 0.1  # the least drift score; Evidently's default
LEAST_ROWS = 200  # of a reference and of a window
KOLMOGOROV, CHI_SQUARE = "Kolmogorov-Smirnov", "chi-square"
WASSERSTEIN, JENSEN_SHANNON = "Wasserstein distance (normed)", "Jensen-Shannon distance"
_LEAST_DEVIATION = 0.001  # the divisor for a constant reference, as in Evidently
_LEAST_EXPECTED = 10.0  # requests of a category, below which the chi-square test is not exact enough
_BINS = 24
_SHOWN_CATEGORIES = 12
_OTHERS = "(others)"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A window beside the reference. columns: the worst first. distributions: in the order of the columns."""

    columns: list[ColumnDrift]
    distributions: list[Distribution]

    @property
    def drifted(self) -> list[str]:
        return [column["name"] for column in self.columns if column["drifted"]]


def ensure_scipy() -> None:
    """Raise Invalid if scipy is not installed."""
    if importlib.util.find_spec("scipy") is None:
        raise Invalid("data drift needs the package scipy: pip install -r requirements/drift.txt")


def level_of(number: int, alpha: float = ALPHA) -> float:
    """Return the level of the window with a number from 1 on. The levels of all windows add up to alpha (Basel's series)."""
    return alpha * 6 / (math.pi * number) ** 2


def compare(
    reference: Table, current: Table, kinds: Mapping[Column, str], level: float, threshold: float = THRESHOLD
) -> Comparison:
    """Return how the current window differs from the reference. kinds: of the columns (features.kinds_of)."""
    from scipy import stats  # a second to import, and only jobs compare

    compared = []
    for column, kind in kinds.items():
        if kind == NUMERIC:
            compared += _numeric(column.name, reference.numbers(column), current.numbers(column))
        else:
            compared += _categorical(column.name, reference.counts(column), current.counts(column))
    if not compared:
        return Comparison([], [])
    corrected = stats.false_discovery_control([one["p"] for one, _ in compared], method="by")
    for (one, _), adjusted in zip(compared, corrected, strict=True):
        one["adjusted_p"] = float(adjusted)
        one["drifted"] = bool(adjusted <= level and one["score"] >= threshold)
    compared.sort(key=lambda pair: (not pair[0]["drifted"], -pair[0]["score"], pair[0]["name"]))
    return Comparison([one for one, _ in compared], [drawn for _, drawn in compared])


def _numeric(name: str, reference: Numbers, current: Numbers) -> list[tuple[ColumnDrift, Distribution]]:
    """Compare a numeric column. Missing values are compared as a column of their own, if there are any."""
    from scipy import stats

    known, now = reference[np.isfinite(reference)], current[np.isfinite(current)]
    found = []
    if len(known) < len(reference) or len(now) < len(current):
        found += _categorical(f"{name} missing", _missing(reference), _missing(current))
    if len(known) and len(now):
        test = stats.ks_2samp(known, now, method="asymp")
        score = stats.wasserstein_distance(known, now) / max(float(np.std(known)), _LEAST_DEVIATION)
        one = _column(name, NUMERIC, KOLMOGOROV, float(test.statistic), float(test.pvalue), WASSERSTEIN, float(score))
        found.append((one, _histogram(known, now)))
    return found


def _missing(values: Numbers) -> Counter[str | None]:
    present = int(np.isfinite(values).sum())
    return Counter({"present": present, "missing": len(values) - present})


def _categorical(
    name: str, reference: Counter[str | None], current: Counter[str | None]
) -> list[tuple[ColumnDrift, Distribution]]:
    from scipy import stats
    from scipy.spatial.distance import jensenshannon

    before, now = (
        Counter({"(missing)" if word is None else word: count for word, count in counts.items() if count})
        for counts in (reference, current)
    )
    if not before or not now:
        return []
    names = [*before, *(word for word in now if word not in before)]
    rows = np.array([[counts[word] for word in names] for counts in (before, now)], np.float64)
    pooled = _pooled(rows)
    statistic, p = 0.0, 1.0
    if pooled.shape[1] > 1:
        test = stats.chi2_contingency(pooled)
        statistic, p = float(test.statistic), float(test.pvalue)
    score = float(jensenshannon(rows[0], rows[1], base=2))
    one = _column(name, CATEGORICAL, CHI_SQUARE, statistic, p, JENSEN_SHANNON, 0.0 if math.isnan(score) else score)
    return [(one, _bars(names, rows))]


def _pooled(rows: Numbers) -> Numbers:
    """Join the rarest categories until each is expected often enough in both rows for the chi-square test."""
    least = _LEAST_EXPECTED * rows.sum() / rows.sum(axis=1).min()
    order = rows.sum(axis=0).argsort()
    rows = rows[:, order]
    while rows.shape[1] > 1 and rows[:, 0].sum() < least:
        joined = np.hstack([rows[:, :2].sum(axis=1, keepdims=True), rows[:, 2:]])
        rows = joined[:, joined.sum(axis=0).argsort()]
    return rows


def _column(name: str, kind: str, test: str, statistic: float, p: float, score: str, value: float) -> ColumnDrift:
    return ColumnDrift(
        name=name,
        kind=kind,
        test=test,
        statistic=statistic,
        p=p,
        adjusted_p=1.0,
        score_name=score,
        score=value,
        drifted=False,
    )


def _histogram(reference: Numbers, current: Numbers) -> Distribution:
    """Return both distributions over the same bins; the outermost bins hold what lies beyond them."""
    ends = [np.quantile(values, [0.005, 0.995]) for values in (reference, current)]
    low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, _BINS + 1)
    shares = [
        (np.histogram(np.clip(values, low, high), edges)[0] / len(values)).tolist() for values in (reference, current)
    ]
    labels = [f"{left:.3g} to {right:.3g}" for left, right in pairwise(edges)]
    return Distribution(labels=labels, reference=shares[0], current=shares[1])


def _bars(names: Sequence[str], rows: Numbers) -> Distribution:
    """Return the shares of the categories, the most frequent first, and of all others together."""
    shares = rows / rows.sum(axis=1, keepdims=True)
    order = (-shares.max(axis=0)).argsort(kind="stable")
    shown, rest = order[:_SHOWN_CATEGORIES], order[_SHOWN_CATEGORIES:]
    labels = [names[place] for place in shown] + ([_OTHERS] if len(rest) else [])
    lines = [[*row[shown].tolist(), *([float(row[rest].sum())] if len(rest) else [])] for row in shares]
    return Distribution(labels=labels, reference=lines[0], current=lines[1])

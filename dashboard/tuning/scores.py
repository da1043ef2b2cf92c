"""The score of a trial by the goal of its tuning, and the gain of the chosen configuration."""

import math
from collections.abc import Sequence

from dashboard.measurements.figures import figure
from dashboard.models.measurement import Figure, LoadFigures
from dashboard.models.tuning import Gain, Trial, TuningPlan
from dashboard.tuning.plan import AT_A_RATE, LIMITED, MEMORY, THROUGHPUT
from dashboard.tuning.search import FAILED, Score

_REACHED = 0.95  # of the rate, because the number of random arrivals varies
_MOST_FAILURES = 0.01  # of the requests


def score_of(trial: Trial, plan: TuningPlan) -> Score:
    """Return the score of a trial that has ended."""
    return FAILED if trial["figures"] is None else score_of_figures(trial["figures"], plan)


def score_of_figures(figures: LoadFigures, plan: TuningPlan) -> Score:
    """Return the score of figures. The figure of the goal counts if every limit is kept, else the largest breach."""
    found = goal_figure(figures, plan)
    breach = _breach(figures, plan)
    if found is None:
        return FAILED
    if breach > 0:
        return Score(False, -breach)
    value = found["value"] if plan["goal"] == THROUGHPUT else -found["value"]
    return Score(True, value, found["spread"] or 0.0)


def goal_figure(figures: LoadFigures, plan: TuningPlan) -> Figure | None:
    """Return the figure that the goal makes best: requests a second, the p99 in ms, or bytes of memory."""
    if plan["goal"] == THROUGHPUT:
        return figures["per_second"]
    if plan["goal"] == MEMORY:
        size = figures["memory_bytes"]
        return None if size is None else Figure(value=float(size), spread=None)
    return figures["p99_ms"]


def _breach(figures: LoadFigures, plan: TuningPlan) -> float:
    """Return by what share a limit is broken; 0 if all are kept."""
    p99, rate = figures["p99_ms"], figures["per_second"]["value"]
    found = [0.0]
    if plan["goal"] in LIMITED and p99 is not None:
        found.append(p99["value"] / plan["p99_ms"] - 1)
    if plan["goal"] in AT_A_RATE and rate < plan["per_second"] * _REACHED:
        found.append(plan["per_second"] / rate - 1 if rate else math.inf)
    if figures["failures"] > _MOST_FAILURES * max(1, figures["requests"]):
        found.append(figures["failures"] / max(1, figures["requests"]))
    return max(found)


def gain_of(before: Sequence[Trial], after: Sequence[Trial], plan: TuningPlan) -> Gain | None:
    """Return the gain of the final comparison, from pairs of trials that were taken in turn; None if a trial failed.

    The spread is that between the pairs, so it includes what changes on the machine from one trial to the next.
    """
    pairs = [
        (_value(first, plan), _value(second, plan))
        for first, second in zip(before, after, strict=True)
        if first["figures"] is not None and second["figures"] is not None
    ]
    if len(pairs) < len(before) or not pairs or not all(first for first, _ in pairs):
        return None
    change = figure(second / first - 1 for first, second in pairs)
    one, other = figure(first for first, _ in pairs), figure(second for _, second in pairs)
    assert change is not None
    assert one is not None
    assert other is not None
    better = change["value"] if plan["goal"] == THROUGHPUT else -change["value"]
    kept = all(trial["fits"] for trial in after)
    alone = kept and not any(trial["fits"] for trial in before)
    beyond = change["spread"] is not None and better > change["spread"]
    return Gain(
        before=one, after=other, change=change["value"], spread=change["spread"], better=alone or (kept and beyond)
    )


def _value(trial: Trial, plan: TuningPlan) -> float:
    found = goal_figure(trial["figures"], plan) if trial["figures"] is not None else None
    return found["value"] if found is not None else 0.0

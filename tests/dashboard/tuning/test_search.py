"""The search finds the best settings of recorded grids with a fifth of their trials, and continues from any results.

benchmarks/tuning_grids.py has recorded the grids on a machine with two processors.
"""

import json
import math
import statistics
from pathlib import Path

import pytest

from dashboard.tuning.search import FAILED, Axis, Score, Values, search_step

GRIDS = Path(__file__).parent / "grids"
AXES = [Axis("m:instances", ["1", "2", "4"]), Axis("m:queue_delay", ["off", "0", "500"])]
PRESENT = {"m:instances": "1", "m:queue_delay": "off"}


def replay(axes: list[Axis], present: dict[str, str], table: dict[Values, Score], most: int) -> tuple[Values, int]:
    known: dict[Values, Score] = {}
    while (step := search_step(axes, present, known, most)).next is not None:
        values = tuple(step.next[axis.name] for axis in axes)
        assert values not in known
        known[values] = table[values]
    return tuple(step.best[axis.name] for axis in axes), len(known)


def grid(name: str) -> tuple[list[Axis], dict[str, str], dict[Values, Score]]:
    found = json.loads((GRIDS / f"{name}.json").read_text())
    axes = [Axis(axis, values) for axis, values in found["axes"].items()]
    table = {
        tuple(row["setting"][axis.name] for axis in axes): Score(
            True, statistics.fmean(rate for rate, _ in row["windows"])
        )
        for row in found["rows"]
    }
    return axes, found["present"], table


@pytest.mark.parametrize("name", ["digits", "digits_torch", "mlp", "python", "text_pipeline"])
def test_a_fifth_of_the_trials_finds_nearly_the_optimum(name: str) -> None:
    axes, present, table = grid(name)
    assert len(table) == math.prod(len(axis.values) for axis in axes)
    best, trials = replay(axes, present, table, len(table) // 5)
    assert trials <= len(table) // 5
    assert table[best].value >= 0.95 * max(score.value for score in table.values())


@pytest.mark.parametrize("goal", [1, -1])
def test_the_optimum_of_a_small_grid_is_found(goal: int) -> None:
    values = {(a, b): 10.0 + i + 3 * j for i, a in enumerate("124") for j, b in enumerate(("off", "0", "500"))}
    table = {key: Score(True, value if goal > 0 else -1000 / value) for key, value in values.items()}
    assert replay(AXES, PRESENT, table, 9) == (("4", "500"), 9)


def test_the_present_setting_is_the_first_trial_and_stays_if_nothing_is_better() -> None:
    assert search_step(AXES, PRESENT, {}, 9).next == PRESENT
    table = {(a, b): Score(True, 1.0) for a in ("1", "2", "4") for b in ("off", "0", "500")}
    assert replay(AXES, PRESENT, table, 9)[0] == ("1", "off")


def test_settings_that_fail_or_break_a_limit_are_not_chosen() -> None:
    table = {(a, b): Score(False, -0.1) for a in ("1", "2", "4") for b in ("off", "0", "500")}
    table["2", "off"], table["1", "0"], table["4", "500"] = FAILED, FAILED, Score(True, 1.0)
    best, trials = replay(AXES, PRESENT, table, 9)
    assert (best, trials) == (("4", "500"), 9)


def test_a_trial_ends_early_only_if_it_is_worse_beyond_both_spreads() -> None:
    best = Score(True, 100.0, 5.0)
    assert Score(True, 80.0, 5.0).clearly_below(best)
    assert not Score(True, 80.0, 18.0).clearly_below(best)
    assert Score(False, -0.9).clearly_below(best)
    assert not Score(False, -0.1).clearly_below(best)
    assert not Score(True, 1.0).clearly_below(Score(False, -0.1))


def test_no_more_trials_than_allowed_are_asked_for() -> None:
    assert search_step(AXES, PRESENT, {("1", "off"): Score(True, 1.0)}, 1).next is None

"""The difference of two arms has bounds that hold the true one nearly always, and not much wider ones."""

import random

import pytest

from dashboard.shared.intervals import Estimate, difference, quantile_of, share_of
from repository.core.histogram import Histogram


def test_the_bounds_of_a_difference_are_those_of_the_worked_example_of_newcombe() -> None:
    """Newcombe (1998), table II: 56 of 70 and 48 of 80 by method 10."""
    found = difference(share_of(56, 70), share_of(48, 80))
    assert found is not None
    assert (found.value, found.low, found.high) == (
        pytest.approx(0.2),
        pytest.approx(0.0524, abs=1e-3),
        pytest.approx(0.3339, abs=1e-3),
    )
    assert found.clear


def latencies(chance: random.Random, count: int, factor: float) -> Histogram:
    found = Histogram()
    for _ in range(count):
        found.add(int(chance.lognormvariate(1.5, 0.7) * factor * 1e6))
    return found


@pytest.mark.parametrize("quantile", [0.5, 0.99])
def test_the_bounds_of_a_quantiles_difference_hold_the_true_one_nearly_always(quantile: float) -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(200):
        arms = [quantile_of(latencies(chance, 1000, 1.0).counts, quantile) for _ in range(2)]
        found = difference(*arms)
        held += found is not None and not found.clear
    assert 200 * 0.9 <= held < 200
    slower, stable = (quantile_of(latencies(chance, 5000, factor).counts, quantile) for factor in (2.0, 1.0))
    found = difference(slower, stable)
    assert found is not None
    assert found.clear
    assert found.value == pytest.approx({0.5: 4.48, 0.99: 22.8}[quantile], rel=0.1), "longer by as much again"


def test_nothing_has_no_difference() -> None:
    assert share_of(0, 0) is None
    assert quantile_of({}, 0.5) is None
    assert difference(None, Estimate(1.0, 0.5, 2.0)) is None

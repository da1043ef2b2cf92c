"""The tests of significance give the probabilities that exact sums give, and rarely accuse a candidate that is no worse."""

import math
import random

import pytest

from serving.traffic.significance import ranks_above, share_above, share_bound, share_exceeds


def tail(count: int, of: int, share: float) -> float:
    return math.fsum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count, of + 1))


@pytest.mark.parametrize(
    ("count", "of", "share"),
    [(1, 1, 0.3), (3, 200, 0.01), (9, 200, 0.01), (60, 200, 0.25), (200, 200, 0.9), (17, 1000, 0.01), (480, 1000, 0.5)],
)
def test_the_tail_of_a_binomial_distribution_is_that_of_an_exact_sum(count: int, of: int, share: float) -> None:
    assert share_above(count, of, share) == pytest.approx(tail(count, of, share), rel=1e-9)


def test_the_tail_is_found_for_a_million_events_too() -> None:
    assert share_above(10_500, 1_000_000, 0.01) == pytest.approx(2.9e-7, rel=0.2)  # five deviations
    assert share_above(10_000, 1_000_000, 0.01) == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(("count", "of", "share", "found"), [(0, 10, 0.5, 1.0), (1, 10, 0.0, 0.0), (5, 10, 1.0, 1.0)])
def test_shares_at_the_edge_need_no_sum(count: int, of: int, share: float, found: float) -> None:
    assert share_above(count, of, share) == found


def test_the_bound_of_a_share_is_the_one_of_clopper_and_pearson() -> None:
    assert share_bound(0, 100, 0.05) == pytest.approx(1 - 0.05**0.01, rel=1e-3)  # (1 - p)^100 = 0.05
    bound = share_bound(7, 300, 0.01)
    assert 1 - tail(8, 300, bound) == pytest.approx(0.01, rel=0.02)
    assert share_bound(5, 5, 0.01) == 1.0


def test_a_candidate_that_fails_much_more_often_is_accused_after_few_requests() -> None:
    assert share_exceeds((20, 200), (10, 4000), 0.01, 0.001) < 0.001
    assert share_exceeds((10, 10), (0, 200), 0.01, 0.001) < 0.001


def test_one_error_of_few_requests_accuses_nobody() -> None:
    assert share_exceeds((1, 20), (0, 400), 0.0, 0.001) > 0.001
    assert share_exceeds((0, 0), (0, 0), 0.0, 0.001) > 0.001


def test_a_margin_is_granted() -> None:
    assert share_exceeds((90, 1000), (10, 1000), 0.0, 0.001) < 0.001
    assert share_exceeds((90, 1000), (10, 1000), 0.1, 0.001) > 0.5


def test_equal_arms_are_hardly_ever_accused() -> None:
    chance = random.Random(11)
    accused = 0
    for _ in range(500):
        candidate = sum(chance.random() < 0.02 for _ in range(200))
        stable = int(chance.gauss(80, 8.9))
        accused += share_exceeds((candidate, 200), (max(0, stable), 4000), 0.0, 0.01) < 0.01
    assert accused <= 500 * 0.01 * 2


def test_ranks_tell_greater_values_from_equal_ones() -> None:
    chance = random.Random(5)
    stable = [chance.gauss(10, 2) for _ in range(60)]
    assert ranks_above([chance.gauss(14, 2) for _ in range(60)], stable) < 1e-6
    assert ranks_above([chance.gauss(10, 2) for _ in range(60)], stable) > 0.01
    assert ranks_above([chance.gauss(6, 2) for _ in range(60)], stable) > 0.99


def test_ranks_of_the_worked_example_of_mann_and_whitney_agree() -> None:
    """The tortoise-and-hare example: 11 pairs of 36 lie one way, 25 the other; P by the normal approximation."""
    first, second = [1, 7, 8, 9, 10, 11], [2, 3, 4, 5, 6, 12]
    assert ranks_above(first, second) == pytest.approx(1 - 0.8506, abs=0.001)


def test_ranks_of_nothing_or_of_equal_values_accuse_nobody() -> None:
    assert ranks_above([], [1.0]) == 1.0
    assert ranks_above([3.0] * 30, [3.0] * 30) == 1.0

"""Evidence against a candidate agrees with exact tests, and is less where requests fail together."""

import math
import random
from collections.abc import Callable

import pytest

from serving.traffic.significance import (
    LOOKS,
    Counted,
    clustered,
    mean_above_zero,
    of_moments,
    p_value,
    rate_exceeds,
    share_above,
    share_exceeds,
)

ENOUGH = math.log(LOOKS / 0.001)  # to be accused, with the usual alpha


def tail(count: int, of: int, share: float) -> float:
    return math.fsum(math.comb(of, k) * share**k * (1 - share) ** (of - k) for k in range(count, of + 1))


def fisher(candidate: tuple[int, int], stable: tuple[int, int]) -> float:
    """The probability of so many of the candidate's, or more, where all that count are drawn from both arms alike."""
    (count, of), (before, of_before) = candidate, stable
    bad = count + before
    ways = sum(math.comb(of, k) * math.comb(of_before, bad - k) for k in range(count, min(of, bad) + 1))
    return ways / math.comb(of + of_before, bad)


@pytest.mark.parametrize(
    ("count", "of", "share"), [(1, 1, 0.3), (9, 200, 0.01), (60, 200, 0.2), (200, 200, 0.9), (45, 1000, 0.01)]
)
def test_evidence_against_a_known_share_bounds_the_tail_of_the_binomial_distribution(
    count: int, of: int, share: float
) -> None:
    exact = tail(count, of, share)
    assert exact * 0.999 <= math.exp(-share_above((count, of), share)) <= 30 * exact


@pytest.mark.parametrize(
    ("candidate", "stable"),
    [((6, 20), (0, 400)), ((26, 200), (0, 200)), ((95, 200), (40, 200)), ((43, 1500), (285, 28500))],
)
def test_evidence_against_another_share_is_close_to_the_exact_test_of_fisher(
    candidate: tuple[int, int], stable: tuple[int, int]
) -> None:
    exact = fisher(candidate, stable)
    assert exact / 2 <= math.exp(-share_exceeds(candidate, stable, 0.0)) <= 30 * exact


def test_a_candidate_that_fails_much_more_often_is_accused_after_few_requests() -> None:
    assert share_exceeds((30, 200), (10, 4000), 0.01) > ENOUGH
    assert share_exceeds((18, 20), (0, 20), 0.01) > ENOUGH
    assert share_exceeds((200, 200), (0, 200), 0.01) > ENOUGH


@pytest.mark.parametrize(
    ("candidate", "stable", "margin"),
    [
        ((1, 20), (0, 400), 0.0),
        ((0, 0), (0, 0), 0.0),
        ((9, 9), (9, 9), 0.01),
        ((0, 9), (9, 9), 0.0),
        ((90, 1000), (10, 1000), 0.1),
    ],
)
def test_a_candidate_that_keeps_to_the_limit_is_not(candidate: Counted, stable: Counted, margin: float) -> None:
    assert p_value(share_exceeds(candidate, stable, margin)) == 1.0


def seconds(count: int, what: Callable[[int], Counted]) -> list[Counted]:
    return [what(second) for second in range(count)]


def test_failures_of_one_moment_are_hardly_more_than_one_event() -> None:
    stable = seconds(300, lambda second: (1, 100))
    spread = seconds(300, lambda second: (1, 5) if second % 3 == 0 else (0, 5))
    burst = seconds(300, lambda second: (5, 5) if 100 <= second < 120 else (0, 5))
    evidence = share_exceeds((100, 1500), (300, 30000), 0.0)
    assert evidence > 4 * ENOUGH
    assert clustered(evidence, spread, stable) > ENOUGH
    assert clustered(evidence, burst, stable) < ENOUGH


def test_events_of_both_arms_at_once_do_not_reduce_the_evidence() -> None:
    outage = [second for second in range(300) if 100 <= second < 105]
    stable = seconds(300, lambda second: (100, 100) if second in outage else (0, 100))
    candidate = seconds(300, lambda second: (5, 5) if second in outage else (second % 2, 5))
    evidence = share_exceeds((172, 1500), (500, 30000), 0.0)
    assert clustered(evidence, candidate, stable) > evidence / 4 > ENOUGH


def test_seconds_that_all_go_badly_are_evidence_however_few() -> None:
    candidate = seconds(7, lambda second: (500, 500))
    evidence = share_exceeds((3500, 3500), (600, 70000), 0.0)
    assert of_moments(evidence, candidate, 1) > ENOUGH
    early = share_exceeds((1000, 1000), (200, 20000), 0.0)
    assert of_moments(early, candidate[:2], 1) < ENOUGH < of_moments(early, candidate[:2], 4)
    assert of_moments(evidence, candidate, 1e6) == evidence, "never more than it is"
    assert of_moments(0.0, [], 1) == 0.0


def events(chance: random.Random, requests: int, each: float, size: float) -> Counted:
    """So many events of one size, where each of the requests may bring one."""
    return sum(size for _ in range(requests) if chance.random() < each), requests


@pytest.mark.parametrize("size", [1.0, 0.005, 3e6])
@pytest.mark.parametrize("weight", [5, 50, 95])
def test_a_counter_is_judged_for_each_request_whatever_its_unit_and_the_weight(size: float, weight: int) -> None:
    chance = random.Random(weight)
    worse = []
    for factor in (1, 4):
        candidate = [events(chance, weight, 0.02 * factor, size) for _ in range(300)]
        stable = [events(chance, 100 - weight, 0.02, size) for _ in range(300)]
        worse.append(rate_exceeds(candidate, stable, 1.2))
    assert p_value(worse[0]) == 1.0
    assert worse[1] > ENOUGH


def test_counters_without_information_are_no_evidence() -> None:
    nothing = [(0.0, 5.0)] * 30
    assert rate_exceeds(nothing, nothing, 1.2) == 0.0
    assert rate_exceeds([], [], 1.2) == 0.0
    assert rate_exceeds([(1.0, 1.0)] * 30, [(1.0, 1.0)] * 30, 1.0) == 0.0
    assert rate_exceeds([(2.0, 1.0)] * 30, [(1.0, 1.0)] * 30, 1.2) == math.inf, "there is no chance in it"


def wander(chance: random.Random, count: int, keeps: float) -> list[float]:
    """Values around zero, each of which resembles the one before."""
    values = [chance.gauss(0, 1)]
    for _ in range(count - 1):
        values.append(keeps * values[-1] + chance.gauss(0, math.sqrt(1 - keeps * keeps)))
    return values


def test_wandering_values_are_less_evidence_than_independent_ones() -> None:
    chance = random.Random(5)
    assert max(mean_above_zero(wander(chance, 60, 0.95)) for _ in range(300)) < ENOUGH
    assert mean_above_zero([0.6 + each for each in wander(chance, 300, 0.0)]) > ENOUGH
    assert mean_above_zero([4 + each for each in wander(chance, 300, 0.5)]) > ENOUGH


def test_values_without_scatter_are_certain() -> None:
    assert mean_above_zero([]) == 0.0
    assert mean_above_zero([0.0] * 30) == 0.0
    assert mean_above_zero([3.0] * 30) == math.inf
    assert p_value(math.inf) == 0.0

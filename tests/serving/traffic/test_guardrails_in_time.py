"""A fault takes the candidate out soon, in simulated seconds of the usual plan, and chance alone does not."""

import pytest

from benchmarks.guardrails import FAULTS, QUIET, Answer, Simulation, accused, seconds_to_find
from serving.traffic.figures import MOMENT_NS, ArmFigures

# Requests a second, and per cent of them to the candidate.
TWO_A_SECOND = [(4, 50), (40, 5), (20, 10), (100, 5), (1000, 5)]


@pytest.mark.parametrize(("rate", "weight"), TWO_A_SECOND)
def test_a_candidate_that_fails_every_request_is_out_within_ten_seconds(rate: float, weight: float) -> None:
    for seed in range(3):
        found = seconds_to_find(FAULTS["every request fails"], rate, weight, seed)
        assert found is not None
        assert found <= 10


@pytest.mark.parametrize(("rate", "weight"), [(2, 50), (1, 20), (10, 5), (1, 5)])
def test_where_it_gets_few_requests_it_is_out_within_twenty_of_them(rate: float, weight: float) -> None:
    found = seconds_to_find(FAULTS["every request fails"], rate, weight, 1)
    assert found is not None
    assert found * rate * weight / 100 <= 20


@pytest.mark.parametrize(("rate", "weight"), [(40, 5), (100, 5), (20, 5)])
def test_one_failure_in_six_is_found_within_sixty_requests(rate: float, weight: float) -> None:
    simulation, second = Simulation(rate, weight, 1), 0
    asked = iter(range(10_000))

    def behaviour(chance: object, second: int, candidate: bool) -> Answer:
        return Answer(5.0, candidate and next(asked) % 6 == 5)

    while not simulation.second(second, behaviour):
        second += 1
        assert simulation.arms[1].requests <= 60


@pytest.mark.parametrize(("rate", "weight"), [(40, 5), (100, 5), (20, 10), (20, 50)])
def test_a_slowdown_that_most_requests_have_is_found_within_thirty_seconds(rate: float, weight: float) -> None:
    found = seconds_to_find(
        lambda chance, second, candidate: Answer((26 if candidate else 4.6) * chance.uniform(0.8, 1.6)), rate, weight, 1
    )
    assert found is not None
    assert found <= 30


def test_one_batch_that_fails_is_one_moment() -> None:
    arms = Simulation(40, 50, 1)
    for place in range(32):
        arms.arms[1].begin()
        arms.arms[1].count(5_000_000, True, 10**12 + place)
    assert arms.arms[1].moments == 1
    for second in range(20):
        assert not arms.second(2000 + second, QUIET["one error in a thousand"])


def test_moments_of_failures_are_apart() -> None:
    figures = ArmFigures(60)
    for place in range(10):
        figures.count(1, True, 10**12 + place * MOMENT_NS // 2)
    figures.refuse()
    figures.give_up(1_000_000, 10**12 + 20 * MOMENT_NS)  # who gave up at once may not have wanted the answer any more
    figures.give_up(2_000_000_000, 10**12 + 20 * MOMENT_NS)
    assert figures.moments == 6


@pytest.mark.parametrize("name", QUIET)
def test_a_candidate_that_is_no_worse_stays(name: str) -> None:
    assert accused(QUIET[name], 20, 20, 3, 200) == 0
    assert name != "errors of 20 %" or accused(QUIET[name], 20, 20, 4, 200, batch=8) == 0

"""Burn rates, the budget and the forecast are exact for every window of a series."""

import random

import pytest

from dashboard.objectives.burn import HOUR, MINUTE, RULES, Counts, Series, Span, budget, burn_rate, burning, windows

NOW = 1_750_000_200 // HOUR * HOUR


def minutes(count: int, requests: int = 600, bad: int = 0) -> list[Span]:
    """The last minutes before NOW, the present one included."""
    return [Span(NOW - (count - 1 - one) * MINUTE, requests, bad) for one in range(count)]


def kinds(spans: list[Span], percent: float = 99.9) -> list[str]:
    return [one.rule.kind for one in burning(Series(spans), NOW, percent)]


def test_every_window_has_the_sum_of_its_spans() -> None:
    chance = random.Random(7)
    spans = [
        Span(at * MINUTE, chance.randrange(100), chance.randrange(9)) for at in sorted(chance.sample(range(900), 500))
    ]
    series = Series(spans)
    for _ in range(200):
        start, end = sorted(chance.sample(range(-60, 901 * MINUTE), 2))
        inside = [one for one in spans if start <= one.at < end]
        assert series.between(start, end) == Counts(sum(s.requests for s in inside), sum(s.bad for s in inside))


def test_a_burn_rate_of_one_spends_the_budget_in_the_period() -> None:
    assert burn_rate(Counts(1000, 1), 99.9) == pytest.approx(1)
    assert burn_rate(Counts(0, 0), 99.9) == 0
    found = budget(Series(minutes(30 * 24 * 60, bad=0)), NOW, 99.9)
    assert (found.left, found.ends_in_s) == (1, None)
    half = [Span(one.at, 1000, 2 if number % 4 == 0 else 0) for number, one in enumerate(minutes(30 * 24 * 60))]
    assert budget(Series(half), NOW, 99.9).left == pytest.approx(0.5)


def test_the_forecast_is_the_time_until_the_rest_is_spent_at_the_present_rate() -> None:
    spans = minutes(30 * 24 * 60, 1000)
    spent = [Span(one.at, 1000, 2 if one.at > NOW - 6 * HOUR else 0) for one in spans]
    found = budget(Series(spent), NOW, 99.9)
    assert found.left is not None
    assert found.burn == pytest.approx(2)
    assert found.ends_in_s == pytest.approx(found.left * 30 * 24 * HOUR / 2)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_burns_from_its_factor_on(rule: object) -> None:
    just = 600 * 0.001 * rule.factor  # type: ignore[attr-defined]
    whole = minutes(3 * 24 * 60, 60_000)
    above = [Span(one.at, one.requests, round(just * 100 * 1.02)) for one in whole]
    below = [Span(one.at, one.requests, round(just * 100 * 0.98)) for one in whole]
    assert rule.kind in kinds(above)  # type: ignore[attr-defined]
    assert rule.kind not in kinds(below)  # type: ignore[attr-defined]


def test_what_is_over_burns_no_more_although_the_long_window_still_has_it() -> None:
    failing = [Span(one.at, 600, 600) for one in minutes(70) if one.at < NOW - 10 * MINUTE]
    quiet = [one for one in minutes(70) if one.at >= NOW - 10 * MINUTE]
    assert kinds(failing + quiet)[0] == "burn"
    assert "burn_fast" not in kinds(failing + quiet)


def test_single_failures_of_a_model_with_few_requests_burn_nothing() -> None:
    assert kinds([Span(NOW, 3, 3), Span(NOW - HOUR // 2, 5, 2)]) == []


def test_the_short_window_of_a_model_with_few_requests_reaches_further_back() -> None:
    """Five minutes of a model with 5 requests a minute say nothing: a failure comes every 20 minutes."""
    few = [Span(one.at, 5, number % 20 == 0) for number, one in enumerate(minutes(6 * 60))]
    fast, middle, _ = windows(Series(few), NOW, 99.9)
    assert (fast.short_s, middle.short_s) == (HOUR, (10 / 0.006 / 5 + 1) // 1 * MINUTE)
    assert middle.short == pytest.approx(10, rel=0.2)
    many = windows(Series(minutes(6 * 60)), NOW, 99.9)
    assert [one.short_s for one in many] == [one.rule.short_s for one in many]


def test_what_is_beyond_the_rate_by_chance_begins_no_alert_but_keeps_one() -> None:
    """20 of 1200 requests are 16.7 times as many as allowed; with 14.4 times as many, 17 are expected, and 20 are no wonder."""
    few = [Span(one.at, 20, number % 3 == 0) for number, one in enumerate(minutes(60))]
    fast = windows(Series(few), NOW, 99.9)[0]
    assert (round(fast.long, 1), fast.burns, fast.goes_on) == (16.7, False, True)

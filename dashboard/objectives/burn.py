"""Burn rates, the budget of an objective and its forecast: pure functions of a series of counts and a time.

The burn rate of a window is its share of bad requests, divided by the share that the objective allows. At a burn rate of 1
the budget of 30 days lasts exactly 30 days. A rule burns if both of its windows do: the long one shows that much was spent,
the short one that it still is being spent. With few requests a window's rate varies by chance: then the short window reaches
further back, and the long one must be beyond its rate by more than chance.
Source: The Site Reliability Workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts" and "Low-Traffic Services and Error
Budget Alerting".
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

MINUTE, HOUR, DAY = 60, 3600, 86400
PERIOD_S = 30 * DAY  # the budget is for this time
FORECAST_S = 6 * HOUR  # the forecast assumes the burn rate of this time
# So many requests of the long window must be bad: single ones say nothing about a model with few requests.
LEAST_BAD = 10
# A short window has so many requests that at its rule's rate so many of them would be bad, or is as long as the long one.
SHORT_BAD = 10
# By so many standard deviations (of a Poisson distribution) the long window's bad requests are more than its rule's rate.
DEVIATIONS = 2.0
# An alert that fires goes on until a window is below so much of the rule's rate: a rate that varies around it is told once.
GOES_ON = 0.75


class Rule(NamedTuple):
    """kind: the alert. factor: the least burn rate, in both windows."""

    kind: str
    factor: float
    long_s: int
    short_s: int


RULES = (
    Rule("burn_fast", 14.4, HOUR, 5 * MINUTE),
    Rule("burn", 6.0, 6 * HOUR, 30 * MINUTE),
    Rule("burn_slow", 1.0, 3 * DAY, 6 * HOUR),
)


class Counts(NamedTuple):
    requests: int
    bad: int


class Span(NamedTuple):
    """The counts of one minute or hour. at: Unix seconds at which it begins."""

    at: int
    requests: int
    bad: int


class Series:
    """Counts over time as running totals, so that each window takes two look-ups. spans: in order of time."""

    __slots__ = ("_at", "_bad", "_requests")

    def __init__(self, spans: Iterable[Span]) -> None:
        self._at: list[int] = []
        self._requests, self._bad = [0], [0]
        for at, requests, bad in spans:
            self._at.append(at)
            self._requests.append(self._requests[-1] + requests)
            self._bad.append(self._bad[-1] + bad)

    def between(self, start: float, end: float) -> Counts:
        """Return the counts of the spans that begin in [start, end)."""
        first, last = bisect_left(self._at, start), bisect_left(self._at, end)
        return Counts(self._requests[last] - self._requests[first], self._bad[last] - self._bad[first])

    def begin_of(self, requests: float, end: float) -> float:
        """Return when the span begins from which on there were so many requests until `end`; -inf if there were fewer."""
        last = bisect_left(self._at, end)
        first = bisect_right(self._requests, self._requests[last] - requests) - 1
        return self._at[first] if first >= 0 and self._at else -math.inf


class Burning(NamedTuple):
    """A rule with the burn rates of its windows. short_s: the length of the short one.

    burns: whether people are told. goes_on: whether an alert that fires goes on.
    """

    rule: Rule
    long: float
    short: float
    short_s: float
    burns: bool
    goes_on: bool

    @property
    def words(self) -> str:
        return f"{span(self.rule.long_s)} and {span(self.short_s)}"


def burn_rate(counts: Counts, percent: float) -> float:
    """Return how many times faster than allowed the budget is spent; 0 without requests."""
    if not counts.requests:
        return 0.0
    return counts.bad / counts.requests / (1 - percent / 100)


def windows(series: Series, now: float, percent: float) -> list[Burning]:
    """Return every rule with its windows at a moment, the most urgent first. Windows end with the last whole minute."""
    end = now - now % MINUTE + MINUTE
    return [windows_of(rule, series, end, percent) for rule in RULES]


def windows_of(rule: Rule, series: Series, end: float, percent: float) -> Burning:
    """Return a rule with its windows. end: of both, in Unix seconds; a whole minute."""
    share = rule.factor * (1 - percent / 100)
    long = series.between(end - rule.long_s, end)
    begin = max(end - rule.long_s, min(end - rule.short_s, series.begin_of(SHORT_BAD / share, end)))
    rates = burn_rate(long, percent), burn_rate(series.between(begin, end), percent)
    at_rule = share * long.requests
    sure = long.bad >= max(LEAST_BAD, min(at_rule + DEVIATIONS * math.sqrt(at_rule), long.requests))
    burns = sure and min(rates) >= rule.factor
    return Burning(rule, *rates, end - begin, burns, min(rates) >= GOES_ON * rule.factor)


def burning(series: Series, now: float, percent: float) -> list[Burning]:
    """Return the rules by which people are told at a moment, the most urgent first."""
    return [one for one in windows(series, now, percent) if one.burns]


class Budget(NamedTuple):
    """The budget of the last 30 days. allowed: bad requests. left: its share, negative if overspent; None without requests.

    burn: the burn rate of the last FORECAST_S. ends_in_s: when the budget is used up at that rate; None if never.
    """

    requests: int
    bad: int
    allowed: float
    left: float | None
    burn: float
    ends_in_s: float | None


def budget(series: Series, now: float, percent: float) -> Budget:
    """Return what is left of the budget, and the forecast."""
    end = now - now % MINUTE + MINUTE
    whole, burn = series.between(end - PERIOD_S, end), burn_rate(series.between(end - FORECAST_S, end), percent)
    allowed = whole.requests * (1 - percent / 100)
    left = 1 - whole.bad / allowed if allowed else None
    ends = None
    if left is not None and burn > 1:
        ends = max(left, 0.0) * PERIOD_S / burn
    return Budget(whole.requests, whole.bad, allowed, left, burn, ends)


def span(seconds: float) -> str:
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min" if seconds != HOUR else "1 h"
    return f"{seconds / HOUR:.3g} h" if seconds < 2 * DAY else f"{seconds / DAY:.3g} days"

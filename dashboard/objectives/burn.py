"""Burn rates, the budget of an objective and its forecast: pure functions of a series of counts and a time.

The burn rate of a window is its share of bad requests, divided by the share that the objective allows. At a burn rate of 1
the budget of 30 days lasts exactly 30 days. A rule burns if both of its windows do: the long one shows that much was spent,
the short one that it still is being spent.
Source: The Site Reliability Workbook, chapter 5, "Multiwindow, Multi-Burn-Rate Alerts".
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

MINUTE, HOUR, DAY = 60, 3600, 86400
PERIOD_S = 30 * DAY  # the budget is for this time
FORECAST_S = 6 * HOUR  # the forecast assumes the burn rate of this time
# So many requests of the long window must be bad: single ones say nothing about a model with few requests.
LEAST_BAD = 10


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


class Burning(NamedTuple):
    """A rule that burns, with the burn rates of its windows."""

    rule: Rule
    long: float
    short: float


def burn_rate(counts: Counts, percent: float) -> float:
    """Return how many times faster than allowed the budget is spent; 0 without requests."""
    if not counts.requests:
        return 0.0
    return counts.bad / counts.requests / (1 - percent / 100)


def burning(series: Series, now: float, percent: float) -> list[Burning]:
    """Return the rules that burn at a moment, the most urgent first. Windows end with the last whole minute."""
    end = now - now % MINUTE + MINUTE
    found = []
    for rule in RULES:
        short = series.between(end - rule.short_s, end)
        if not short.bad:
            continue
        long = series.between(end - rule.long_s, end)
        if long.bad < LEAST_BAD:
            continue
        rates = burn_rate(long, percent), burn_rate(short, percent)
        if min(rates) >= rule.factor:
            found.append(Burning(rule, *rates))
    return found


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

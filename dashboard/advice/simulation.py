"""A discrete-event simulation of the dynamic batcher: requests, one queue, and instances that execute batches.

The simulation obeys the rules of serving.scheduling.batch_rules, which tests compare with it. All requests have the same batch
key. Requests come when they come, whether earlier ones are answered or not (an open loop). Times are in nanoseconds.
"""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from itertools import accumulate
from random import Random
from typing import NamedTuple, Protocol

from repository.core.histogram import BOUNDS_US, Counts

_NEVER = 1 << 62


class Setting(NamedTuple):
    """The batching and the instances of a model. merges: whether requests are joined. preferred: ascending, up to max_rows."""

    merges: bool
    max_rows: int
    preferred: tuple[int, ...] = ()
    delay_ns: int = 0
    instances: int = 1


class Arrivals(Protocol):
    """A process of arrivals."""

    def times(self, count: int, random: Random) -> list[int]:
        """Return the times of `count` requests, ascending."""


class IndependentGaps:
    """Each gap is drawn from a histogram. Describes periodic and Poisson traffic, and bursts of random length."""

    def __init__(self, gaps: Counts) -> None:
        self._gaps = GapSampler(gaps)

    def times(self, count: int, random: Random) -> list[int]:
        return list(accumulate(self._gaps.draw(random) for _ in range(count)))


class Bursts:
    """Bursts of about equal length: gaps of `within` in a burst, gaps of `between` from one burst to the next."""

    def __init__(self, within: Counts, between: Counts) -> None:
        self._within, self._between = GapSampler(within), GapSampler(between)
        mean = 1 + sum(within.values()) / sum(between.values())
        # Bursts of equal length have a mean that is not quite whole, because the first and the last gap may be missing.
        self.length = round(mean) if abs(mean - round(mean)) < 0.1 else mean

    def times(self, count: int, random: Random) -> list[int]:
        found: list[int] = []
        now = 0
        while len(found) < count:
            now += self._between.draw(random)
            found.append(now)
            for _ in range(math.floor(self.length + random.random()) - 1):
                now += self._within.draw(random)
                found.append(now)
        return found[:count]


class GapSampler:
    """Draws gaps from a histogram of durations, evenly within a bucket."""

    def __init__(self, gaps: Counts) -> None:
        ordered = sorted((bucket, count) for bucket, count in gaps.items() if count)
        self._buckets = [bucket for bucket, _ in ordered]
        self._sums = list(accumulate(count for _, count in ordered))

    def draw(self, random: Random) -> int:
        bucket = self._buckets[bisect_left(self._sums, math.ceil(random.random() * self._sums[-1]) or 1)]
        low = BOUNDS_US[bucket - 1] if bucket else 0
        return int((low + (BOUNDS_US[bucket] - low) * random.random()) * 1000)


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """The time of one execution by its rows: `measured` for sizes that were seen often, else fixed_ns + rows * row_ns.

    spread: the standard deviation divided by the mean. stretch: a factor for all times.
    """

    fixed_ns: float
    row_ns: float
    measured: Mapping[int, float] = field(default_factory=dict)
    spread: float = 0.0
    stretch: float = 1.0

    def mean_ns(self, rows: int) -> float:
        found = self.measured.get(rows)
        return (self.fixed_ns + rows * self.row_ns if found is None else found) * self.stretch

    def draw(self, rows: int, random: Random) -> int:
        """Return the time of an execution, from a log-normal distribution with the mean and the spread."""
        mean = self.mean_ns(rows)
        if not self.spread:
            return int(mean)
        variance = math.log1p(self.spread * self.spread)
        return int(random.lognormvariate(math.log(max(mean, 1.0)) - variance / 2, math.sqrt(variance)))

    def stretched(self, factor: float) -> "ServiceTime":
        return replace(self, stretch=self.stretch * factor)


class Outcome(NamedTuple):
    """The result of a simulation. waited_ns and took_ns: of each request, in the order of execution. batches: rows ->
    executions. busy_ns: the time of all executions. span_ns: from the first arrival to the last end."""

    waited_ns: list[int]
    took_ns: list[int]
    batches: Counter[int]
    busy_ns: int
    span_ns: int

    def took_ms(self, quantile: float) -> float:
        return quantile_of(self.took_ns, quantile) / 1e6

    @property
    def busy_instances(self) -> float:
        """The mean number of instances that execute a batch."""
        return self.busy_ns / self.span_ns if self.span_ns else 0.0

    @property
    def busy_ns_of_request(self) -> float:
        return self.busy_ns / len(self.took_ns)

    @property
    def rows_of_batch(self) -> float:
        return sum(rows * count for rows, count in self.batches.items()) / self.batches.total()


def quantile_of(values: Sequence[int], quantile: float) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


class Chosen(NamedTuple):
    """How many requests run now, or none and the time to wait for more."""

    requests: int
    wait_ns: int


class Rules:
    """The batches that a setting forms from requests that have `rows` rows each, as BatchRules.choose forms them."""

    def __init__(self, setting: Setting, rows: int) -> None:
        self._merges, max_rows, preferred, self._delay_ns, _ = setting
        self._most = max(1, max_rows // rows)  # requests of a batch
        self._enough = (preferred[-1] if preferred else max_rows) / rows  # a batch of so many requests does not wait
        self._preferred = [0]  # how many of so many requests make the largest preferred size; 0 for none
        for requests in range(1, self._most + 1):
            before = self._preferred[-1]
            if requests * rows in preferred:
                before = requests
            elif preferred and requests > 1 and not before and requests * rows > preferred[-1]:
                before = requests - 1  # no larger size can be filled
            self._preferred.append(before)

    def choose(self, waiting: int, age_ns: int) -> Chosen:
        """Choose the next batch. waiting: the number of requests, at least one. age_ns: how long the oldest one has waited."""
        if not self._merges:
            return Chosen(1, 0)
        count = min(waiting, self._most)
        preferred = self._preferred[count]
        if not self._delay_ns:
            return Chosen(preferred or count, 0)
        if preferred and age_ns < self._delay_ns:
            return Chosen(preferred, 0)
        if waiting > self._most or age_ns >= self._delay_ns or count >= self._enough:
            return Chosen(count, 0)
        return Chosen(0, self._delay_ns - age_ns)


def simulate(arrivals: Sequence[int], rows: int, setting: Setting, service: ServiceTime, random: Random) -> Outcome:
    """Simulate requests that arrive at these times (ascending) and have `rows` rows each."""
    rules = Rules(setting, rows)
    queue: deque[int] = deque()  # the times of arrival
    running: list[int] = []  # a heap of the ends of executions
    free = setting.instances
    waited: list[int] = []
    took: list[int] = []
    batches: Counter[int] = Counter()
    busy = last = position = 0
    due = _NEVER  # the time at which the oldest request has waited long enough
    count = len(arrivals)
    while position < count or queue:
        now = min(arrivals[position] if position < count else _NEVER, running[0] if running else _NEVER, due)
        while running and running[0] <= now:
            heappop(running)
            free += 1
        while position < count and arrivals[position] <= now:
            queue.append(arrivals[position])
            position += 1
        due = _NEVER
        while free and queue:
            chosen, wait_ns = rules.choose(len(queue), now - queue[0])
            if not chosen:
                due = now + wait_ns
                break
            took_ns = max(1, service.draw(chosen * rows, random))
            for _ in range(chosen):
                queued = now - queue.popleft()
                waited.append(queued)
                took.append(queued + took_ns)
            batches[chosen * rows] += 1
            busy += took_ns
            last = max(last, now + took_ns)
            free -= 1
            heappush(running, now + took_ns)
    return Outcome(waited, took, batches, busy, last - arrivals[0])

"""Keeps live traffic as fast as without the batch job: additive increase, multiplicative decrease.

The feed of the server counts all requests of a model. The job knows its own requests, and takes them out of the histogram.
In some seconds the job holds its requests back, and measures live traffic alone: the baseline. In the seconds between, the
limit on rows grows as long as the p99 of live traffic and the mean time in the queue are close to the baseline. Otherwise the
limit is halved.
"""

from contextlib import aclosing
from dataclasses import dataclass, field

from dashboard.batches.sending.pace import Pace
from dashboard.metrics.feed import FeedReader, Tick, follow_feed
from dashboard.metrics.usage import Usage, combine_side_by_side
from dashboard.servers.client import AsyncServerClient
from repository.core.histogram import Counts, bucket_of, merge, quantiles_ms

MOST_RISE = 0.10  # of the p99 of live requests
ENOUGH = 200  # live requests of a model from which its p99 is known
MOST_TICKS = 10  # the most seconds of one measurement
FRESH_TICKS = 60  # seconds until the baseline is measured again
FEW = 5  # live requests of a model in a measurement that do not count
OFF = 0.2  # of its own requests, the share that the job may see in another second than the server
STEP = 0.05  # the growth of the limit after a good measurement
STEP_ALONE = 0.25  # the growth in a second without live requests


class OwnRequests:
    """The durations of the job's own requests since the last tick, in microseconds, as the job measured them."""

    def __init__(self) -> None:
        self._durations: list[int] = []

    def add(self, seconds: float) -> None:
        self._durations.append(int(seconds * 1e6))

    def take(self) -> list[int]:
        durations, self._durations = self._durations, []
        return durations


@dataclass(slots=True)
class Window:
    """Live requests of each model, and the queue of the job's model, over some ticks."""

    ticks: int = 0
    counts: dict[str, Counts] = field(default_factory=dict)
    queue_ns: int = 0
    queue_count: int = 0

    @property
    def live(self) -> int:
        return max((sum(counts.values()) for counts in self.counts.values()), default=0)

    @property
    def whole(self) -> bool:
        return self.live >= ENOUGH or self.ticks >= MOST_TICKS

    @property
    def queue_ms(self) -> float:
        return self.queue_ns / max(self.queue_count, 1) / 1e6

    def p99(self) -> dict[str, float]:
        """Return the p99 in ms of each model with live requests."""
        found = {name: quantiles_ms(counts, (0.99,))[0] for name, counts in self.counts.items()}
        return {name: p99 for name, p99 in found.items() if p99 is not None and sum(self.counts[name].values()) > FEW}


@dataclass(frozen=True, slots=True)
class Baseline:
    """Live traffic without the job: the p99 of each model, and the mean time in the queue of the job's model, in ms.

    quiet: models with requests only while the job sends, such as the steps of an ensemble.
    """

    p99: dict[str, float]
    queue_ms: float
    quiet: frozenset[str]


class Governor:
    """Changes the pace with every tick of a server's feed. model: the job's own."""

    def __init__(self, pace: Pace, own: OwnRequests, model: str) -> None:
        self._pace, self._own, self._model = pace, own, model
        self._window = Window()
        self._baseline: Baseline | None = None
        self._before: frozenset[str] = (
            frozenset()
        )  # models that had requests before the present measurement of live traffic
        self._age = 0  # ticks since the baseline was measured

    async def run(self, client: AsyncServerClient) -> None:
        """Follow the feed until cancelled."""
        async with aclosing(follow_feed(client, FeedReader())) as ticks:
            async for tick in ticks:
                if isinstance(tick, Tick):
                    self.see(tick)
                else:
                    self._blind()

    def see(self, tick: Tick) -> None:
        """Judge one second of the server."""
        self._add(tick)
        self._age += 1
        if self._pace.held:
            if self._window.whole or not self._window.live:
                p99 = self._window.p99()
                self._baseline = Baseline(p99, self._window.queue_ms, self._before - p99.keys())
                self._go_on(held=False)
        elif self._window.live <= FEW:
            self._pace.faster(STEP_ALONE)
            self._window = Window()
        elif self._baseline is None or self._age >= FRESH_TICKS or self._new_models(self._baseline):
            self._age, self._before = 0, frozenset(self._window.p99())
            self._go_on(held=True)
        elif self._window.whole or self._suffers(self._baseline):
            if self._suffers(self._baseline):
                self._pace.slower()
            else:
                self._pace.faster(STEP)
            self._window = Window()

    def _new_models(self, baseline: Baseline) -> bool:
        return bool(self._window.p99().keys() - baseline.p99.keys() - baseline.quiet)

    def _suffers(self, baseline: Baseline) -> bool:
        """Return whether live traffic is slower than the baseline allows."""
        p99 = self._window.p99()
        room = MOST_RISE * baseline.p99.get(self._model, 0.0)
        if self._model in baseline.p99 and self._window.queue_ms > baseline.queue_ms + room:
            return True
        known = self._window.whole
        return known and any(p99.get(name, 0.0) > before * (1 + MOST_RISE) for name, before in baseline.p99.items())

    def _go_on(self, *, held: bool) -> None:
        self._window = Window()
        self._pace.hold(held)

    def _blind(self) -> None:
        self._baseline = None
        self._go_on(held=False)
        self._own.take()
        self._pace.careful()

    def _add(self, tick: Tick) -> None:
        usages: dict[str, list[Usage]] = {}
        for (name, _), usage in tick.models.items():
            usages.setdefault(name, []).append(usage)
        own = self._own.take()
        window = self._window
        window.ticks += 1
        for name, parts in usages.items():
            whole = combine_side_by_side(parts)
            counts = without(whole.request, own) if name == self._model else whole.request
            if name == self._model and sum(counts.values()) <= OFF * len(own):
                counts = {}
            window.counts[name] = merge([window.counts.get(name, {}), counts])
            if name == self._model:
                window.queue_ns += whole.queue_ns
                window.queue_count += whole.queue_count


def without(counts: Counts, own_us: list[int]) -> Counts:
    """Return a histogram without the job's own requests.

    The server measures a little less than the job does, so each duration is taken from the highest bucket that is not above it.
    """
    left = dict(counts)
    for duration in sorted(own_us, reverse=True):
        highest = bucket_of(duration)
        bucket = max((one for one, count in left.items() if count > 0 and one <= highest), default=None)
        if bucket is not None:
            left[bucket] -= 1
    return {bucket: count for bucket, count in left.items() if count > 0}

"""Follows a server's live feed during a measurement: the use of its process, and whether its clients suffer."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import pairwise

from dashboard.measurements.figures import figure
from dashboard.models import Server
from dashboard.models.measurement import Figure, MeasurementPlan
from dashboard.servers.client import AsyncServerClient
from dashboard.servers.messages import Stats, StatsEvent
from dashboard.shared.exceptions import DashboardError
from repository.core.histogram import Counts, merge, quantiles_ms, subtract
from repository.core.quantities import latency

logger = logging.getLogger(__name__)

BASELINE_S = 3.0  # the time before the first load in which the clients' p99 is measured
_RECENT = 3  # the events of the feed, one a second, over which the p99 of clients is measured
_LEAST_REQUESTS = 20  # a p99 of fewer requests is not judged
_SLACK_MS = 1.0  # growth of a p99 by less than this is no breach, whatever its share
_KEPT = 3600  # samples

Key = tuple[str, str]  # name and version of a model


@dataclass(frozen=True, slots=True)
class Sample:
    """One event of the feed. at: seconds of time.monotonic. power_w: of all GPUs together, None if no GPU reports it."""

    at: float
    cpu_seconds: float
    memory_bytes: int
    power_w: float | None


@dataclass(frozen=True, slots=True)
class Usage:
    """The use of a server in a span of time; None for unknown values. watts: the power of its GPUs."""

    cpu_cores: Figure | None
    memory_bytes: int | None
    watts: Figure | None


class FeedWatch:
    """Keeps the samples of a feed, and the reason to stop as soon as the bounds of a plan are broken.

    breach: a clause; "" while the bounds hold. lost: the reason why the feed ended, as a clause; "" while it is followed.
    """

    def __init__(self, server: Server, plan: MeasurementPlan, cores: int) -> None:
        self._server, self._plan, self._cores = server, plan, cores
        self._samples: deque[Sample] = deque(maxlen=_KEPT)
        self._latencies: dict[Key, Counts] = {}
        self._pending: dict[Key, int] = {}
        self._recent: deque[dict[Key, Counts]] = deque(maxlen=_RECENT + 1)
        self._first: dict[Key, Counts] | None = None
        self._clients: set[Key] = set()
        self._limit_ms: float | None = None
        self._guards = False
        self.breach = ""
        self.lost = ""

    async def follow(self) -> None:
        """Read the feed until it ends."""
        try:
            async with AsyncServerClient(self._server) as client, aclosing(client.feed()) as events:
                async for event in events:
                    if isinstance(event, StatsEvent):
                        self.take(event.data, time.monotonic())
        except DashboardError as error:
            self.lost = error.message
        except Exception:
            logger.exception("the feed of server %s cannot be followed", self._server.name)
            self.lost = "the server's feed is not understood"

    def take(self, stats: Stats, now: float) -> None:
        """Process one event that arrived at `now`."""
        usage = stats["server"]
        watts = [gpu["power_w"] for gpu in usage["gpus"] if gpu["power_w"] is not None]
        self._samples.append(Sample(now, usage["cpu_seconds"], usage["rss_bytes"], sum(watts) if watts else None))
        for row in stats["models"]:
            key = row["name"], row["version"]
            self._pending[key] = row["pending"]
            self._latencies[key] = {int(bucket): count for bucket, count in row["request_latency"]["counts"].items()}
        self._recent.append(dict(self._latencies))
        if self._first is None:
            self._first = dict(self._latencies)
        if self._guards and not self.breach:
            self.breach = self._broken()

    def guard(self) -> None:
        """End the baseline, and begin to judge: the versions that had requests until now are those of clients."""
        first, now = self._first or {}, dict(self._latencies)
        grown = {key: subtract(counts, first.get(key, {})) for key, counts in now.items()}
        self._clients = {key for key, counts in grown.items() if counts}
        p99 = _p99(merge(grown[key] for key in self._clients))
        if p99 is not None:
            self._limit_ms = p99 * (1 + self._plan["most_p99_growth"]) + _SLACK_MS
        self._guards = True

    def usage(self, since: float, until: float) -> Usage:
        """Return the use of the server between two moments of time.monotonic."""
        samples = [one for one in list(self._samples) if since <= one.at <= until]
        rates = [(b.cpu_seconds - a.cpu_seconds) / (b.at - a.at) for a, b in pairwise(samples) if b.at > a.at]
        return Usage(
            figure(rates),
            max((one.memory_bytes for one in samples), default=None),
            figure(one.power_w for one in samples if one.power_w is not None),
        )

    def _broken(self) -> str:
        waiting = sum(self._pending.values())
        if waiting > self._plan["most_pending"]:
            return f"{waiting} requests were waiting on the server, and the bound is {self._plan['most_pending']}"
        if (used := self._cpu_share()) > self._plan["most_cpu"]:
            bound = self._plan["most_cpu"]
            return f"the server used {used:.0%} of the processors, and the bound is {bound:.0%}"
        p99 = self._clients_p99()
        if p99 is not None and self._limit_ms is not None and p99 > self._limit_ms:
            return f"the p99 of clients grew to {latency(p99)}, and the bound is {latency(self._limit_ms)}"
        return ""

    def _cpu_share(self) -> float:
        """Return the share of the processors that the server used in the last seconds."""
        recent = list(self._samples)[-_RECENT:]
        if len(recent) < _RECENT:
            return 0.0
        passed = recent[-1].at - recent[0].at
        return (recent[-1].cpu_seconds - recent[0].cpu_seconds) / passed / self._cores if passed > 0 else math.nan

    def _clients_p99(self) -> float | None:
        before, now = self._recent[0], self._recent[-1]
        counts = merge(subtract(now.get(key, {}), before.get(key, {})) for key in self._clients)
        return _p99(counts)


def _p99(counts: Counts) -> float | None:
    return quantiles_ms(counts, [0.99])[0] if sum(counts.values()) >= _LEAST_REQUESTS else None


@contextmanager
def feed_watch(server: Server, plan: MeasurementPlan, cores: int) -> Iterator[FeedWatch]:
    """Follow the feed of a server on a thread."""
    watch = FeedWatch(server, plan, cores)
    loop = asyncio.new_event_loop()
    task = loop.create_task(watch.follow())

    def run() -> None:
        try:
            loop.run_until_complete(asyncio.wait([task]))
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="feed of a measurement", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        try:
            loop.call_soon_threadsafe(task.cancel)
        except RuntimeError:  # the feed has ended, and the loop is closed
            pass
        thread.join()

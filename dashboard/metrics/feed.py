"""Reads a server's live feed: turns cumulative counters into the differences between two events."""

import asyncio
import functools
import logging
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from dashboard.metrics.samples import ProcessGauges
from dashboard.metrics.usage import Usage, since
from dashboard.models.rollout import ArmReport, Latency, ShadowReport, TrafficReport
from dashboard.servers.client import AsyncServerClient, Refused
from dashboard.servers.messages import (
    FeedEvent,
    Hello,
    HelloEvent,
    InstanceCounters,
    Memory,
    ProcessUsage,
    Stats,
    TrafficHead,
    VersionCounters,
)
from dashboard.shared.choices import version_word
from dashboard.shared.exceptions import DashboardError
from dashboard.shared.json_shape import misfit
from repository.core.histogram import BOUNDS_US, Counts, merge

logger = logging.getLogger(__name__)

RECONNECT_S = 0.5
_FAR_FUTURE = 1e11  # Unix seconds; a later moment does not fit into a datetime
NO_VERSION = 0  # the version of requests for which no version was ready

Key = tuple[str, int]  # model name, version
_NOTHING = Usage()


class Told(NamedTuple):
    """What a server tells of a version apart from its counters. state: shared.choices.version_word. release: 0 if it has none.
    loading: the step of its load, None if it is not loaded."""

    state: str
    release: object
    loading: object


@dataclass(frozen=True, slots=True)
class Tick:
    """The work of a server in about one second. models: every version with requests, finished or pending."""

    time: float  # Unix seconds of the server's clock
    seconds: float  # since the previous tick
    models: dict[Key, Usage]
    process: ProcessGauges
    memory: dict[Key, int] = field(default_factory=dict)  # bytes of each loaded version, GPUs included
    instances: dict[Key, dict[str, Usage]] = field(default_factory=dict)  # by label, of versions that have several
    floors: frozenset[Key] = frozenset()  # versions whose memory is only a lower bound, from the size of their files


class BucketMap:
    """Maps the buckets of a server's histograms to the buckets of repository.core.histogram, by their bounds.

    bounds_us: exclusive upper bounds in microseconds, ascending. Servers other than Slipway's may have other bounds.
    """

    def __init__(self, bounds_us: Sequence[int]) -> None:
        self._same = list(bounds_us) == BOUNDS_US
        self._ours = _our_buckets(tuple(bounds_us))

    def read(self, counts: Mapping[str, int]) -> Counts:
        """Return a histogram in our buckets. counts: bucket number, as text -> count. Raises ValueError for a wrong entry."""
        if not counts:
            return {}
        ours = self._ours
        if not (counts.keys() <= ours.keys() and min(counts.values()) >= 0):
            raise ValueError("a histogram has an unknown bucket")
        if self._same:
            return {ours[bucket]: count for bucket, count in counts.items()}
        return merge({ours[bucket]: count} for bucket, count in counts.items())


@functools.lru_cache(8)
def _our_buckets(bounds_us: tuple[int, ...]) -> dict[str, int]:
    """Return our bucket of each bucket of a server. Servers of one release share it."""
    last = len(BOUNDS_US) - 1
    return {str(bucket): min(bisect_left(BOUNDS_US, bound), last) for bucket, bound in enumerate(bounds_us)}


@dataclass(slots=True)
class FeedReader:
    """Turns the events of a feed into ticks; it keeps its counters across reconnections."""

    instance: str = ""
    heard_at: float = float(
        "-inf"
    )  # when the last event came, in monotonic seconds; -inf while the feed is interrupted
    news: dict[Key, Told] = field(default_factory=dict)  # of versions about which the server has told something else
    greeted: int = 0  # the connections, after each of which every version is told
    states: dict[Key, str] = field(default_factory=dict)  # shared.choices.version_word of each version
    memory: dict[Key, int] = field(default_factory=dict)
    floors: set[Key] = field(default_factory=set)
    traffic: dict[str, TrafficReport] = field(default_factory=dict)  # rollout -> its last report
    _rollouts: dict[tuple[str, str], str] = field(
        default_factory=dict
    )  # model and namespace -> the rollout last reported
    _odd: set[str] = field(default_factory=set)  # rollouts with reports that are not understood
    _buckets: BucketMap | None = None
    _readings: dict[Key, Usage] = field(default_factory=dict)
    _instances: dict[Key, dict[str, Usage]] = field(default_factory=dict)
    _unserved: dict[str, int] = field(default_factory=dict)
    _time: float = 0.0
    _cpu_seconds: float = 0.0
    _first: bool = True
    _told: dict[Key, Told] = field(default_factory=dict)
    # What ticks share while no version holds more or less.
    _held: tuple[dict[Key, int], frozenset[Key]] | None = None

    def read(self, event: FeedEvent) -> Tick | None:
        """Return the tick that an event completes. None for a hello event, and for the first counters of a running server."""
        self.heard_at = time.monotonic()
        if isinstance(event, HelloEvent):
            self._greet(event.data)
            return None
        return self._tick(event.data)

    def interrupted(self) -> None:
        self.heard_at = float("-inf")

    def _greet(self, data: Hello) -> None:
        self._buckets = BucketMap(data["bounds_us"])
        if self.instance and data["instance"] != self.instance:
            # A new process: its counters began at zero during this subscription.
            self._readings, self._unserved, self.states, self.memory, self.floors = {}, {}, {}, {}, set()
            self._instances = {}
            self.traffic, self._rollouts, self._odd = {}, {}, set()
            self._time, self._cpu_seconds = float(data["started"]), 0.0
            self._told, self.news, self._held = {}, {}, None
        self.greeted += 1
        self.instance = data["instance"]

    def _tick(self, data: Stats) -> Tick | None:
        if not 0 <= data["time"] < _FAR_FUTURE:
            raise ValueError(f"the time {data['time']} is impossible")
        apart = {key: usages for entry in data["models"] for key, usages in self._of_instances(entry)}
        models = {key: usage for entry in data["models"] for key, usage in [self._difference(entry)]}
        for key, usage in self._readings.items():
            if key not in models and (usage.pending or usage.in_flight):
                models[key] = Usage(pending=usage.pending, in_flight=usage.in_flight)
        models |= self._refused(data.get("unserved", {}))
        for report in data.get("traffic", ()):
            self.keep_report(report)
        elapsed = data["time"] - self._time
        seconds = elapsed if elapsed > 0 else 1.0  # the server's clock was set back
        process = self._process(data["server"], seconds)
        self._time = data["time"]
        if self._first:
            self._first = False
            return None
        busy = {key: usage for key, usage in models.items() if not usage.idle}
        if self._held is None:
            self._held = dict(self.memory), frozenset(self.floors)
        memory, floors = self._held
        return Tick(data["time"], seconds, busy, process, memory, apart, floors)

    def keep_report(self, report: TrafficHead | TrafficReport) -> None:
        """Keep a report of a rollout, with its histograms in our buckets. A model's new rollout replaces its previous one. A
        report that is not understood is logged and not kept."""
        model, name = (report["model"], report.get("namespace", "")), report["rollout"]
        if (before := self._rollouts.pop(model, None)) is not None and before != name:
            del self.traffic[before]
        if self._buckets is None or name is None:
            return
        wrong = misfit(report, TrafficReport) or _impossible(cast(TrafficReport, report))
        try:
            kept = None if wrong else _in_our_buckets(cast(TrafficReport, report), self._buckets)
        except ValueError as error:
            kept, wrong = None, str(error)
        if kept is None:
            if name not in self._odd:
                logger.error(
                    "the server's report of rollout %s is not understood, at %s: the rollout waits", name, wrong
                )
            self._odd.add(name)
            return
        self._rollouts[model] = name
        self.traffic[name] = kept

    def _refused(self, unserved: dict[str, int]) -> dict[Key, Usage]:
        """Return the requests that were refused because no version was ready, under NO_VERSION of each model."""
        before, self._unserved = self._unserved, dict(unserved)
        found = {}
        for name, count in unserved.items():
            seen = before.get(name, 0)
            if grown := count - seen if count >= seen else count:  # a counter that fell began at zero
                found[name, NO_VERSION] = Usage(fail=grown, failures={"REJECTED": grown})
        return found

    def _difference(self, entry: VersionCounters) -> tuple[Key, Usage]:
        key = (entry["name"], int(entry["version"]))
        now = self._cumulative(entry)
        before = self._readings.get(key, _NOTHING)
        self._readings[key] = now
        self.states[key] = version_word(entry["state"], entry.get("condition", ""), entry.get("failed", False))
        more = cast(Mapping[str, object], entry)
        told = Told(self.states[key], more.get("release", 0), more.get("loading"))
        if self._told.get(key) != told:
            self._told[key] = self.news[key] = told
        self._keep_memory(key, entry.get("memory") or {})
        return key, since(now, before)

    def _keep_memory(self, key: Key, memory: Memory) -> None:
        held, floor = _held(memory), memory.get("basis") == "files"
        if self.memory.get(key) == held and (key in self.floors) == floor:
            return
        self.memory[key], self._held = held, None
        if floor:
            self.floors.add(key)
        else:
            self.floors.discard(key)

    def _of_instances(self, entry: VersionCounters) -> Iterator[tuple[Key, dict[str, Usage]]]:
        """Yield the version with the work of each of its instances, if it has several."""
        key = (entry["name"], int(entry["version"]))
        before = self._instances.pop(key, {})
        if not (told := entry.get("instances")):
            return
        now = self._instances[key] = {label: self._of_instance(one) for label, one in told.items()}
        grown = {label: since(usage, before.get(label, _NOTHING)) for label, usage in now.items()}
        yield key, {label: usage for label, usage in grown.items() if not usage.idle}

    def _of_instance(self, told: InstanceCounters) -> Usage:
        assert self._buckets is not None
        return Usage(
            success=told["success"],
            fail=told["fail"],
            inferences=told["inference_count"],
            executions=told["execution_count"],
            compute_count=told["execution_count"],
            compute_ns=told["compute_ns"],
            request=self._buckets.read(told["request_latency"]["counts"]),
        )

    def _cumulative(self, entry: VersionCounters) -> Usage:
        assert self._buckets is not None
        compute = (entry["compute_input"], entry["compute_infer"], entry["compute_output"])
        return Usage(
            success=entry["success"]["count"],
            success_ns=entry["success"]["ns"],
            fail=entry["fail"]["count"],
            cancel=entry["failures"].get("CANCELED", 0),
            mirrored=entry.get("mirrored", 0),
            queue_count=entry["queue"]["count"],
            queue_ns=entry["queue"]["ns"],
            compute_count=entry["compute_infer"]["count"],
            compute_ns=sum(part["ns"] for part in compute),
            input_ns=entry["compute_input"]["ns"],
            output_ns=entry["compute_output"]["ns"],
            inferences=entry["inference_count"],
            executions=entry["execution_count"],
            cache_hits=entry["cache_hits"],
            cache_misses=entry["cache_misses"],
            pending=entry["pending"],
            in_flight=entry["in_flight"],
            failures=entry["failures"],
            batches={int(size): count for size, count in entry["batches"].items()},
            batch_ns={int(size): ns for size, ns in entry.get("batch_times", {}).items()},
            request=self._buckets.read(entry["request_latency"]["counts"]),
            queue=self._buckets.read(entry["queue_latency"]["counts"]),
            compute=self._buckets.read(entry["compute_latency"]["counts"]),
            gaps=self._buckets.read(entry["arrival_gaps"]["counts"]) if "arrival_gaps" in entry else {},
        )

    def _process(self, server: ProcessUsage, seconds: float) -> ProcessGauges:
        cpu = max(0.0, server["cpu_seconds"] - self._cpu_seconds) / seconds
        self._cpu_seconds = server["cpu_seconds"]
        return {
            "rss": server["rss_bytes"],
            "cpu": round(cpu, 3),
            "threads": server["threads"],
            "gpus": server["gpus"],
        }


async def follow_feed(client: AsyncServerClient, reader: FeedReader) -> AsyncGenerator[Tick | DashboardError, None]:
    """Yield the ticks of a server's feed without end. If the feed fails, yield the error and reconnect RECONNECT_S later."""
    while True:
        try:
            async with aclosing(client.feed()) as events:
                async for event in events:
                    if (tick := _tick_of(reader, event)) is not None:
                        yield tick
        except DashboardError as error:
            reader.interrupted()
            yield error
        await asyncio.sleep(RECONNECT_S)


def _tick_of(reader: FeedReader, event: FeedEvent) -> Tick | None:
    """Return the tick that an event completes, or None. Raises Refused if the event is malformed."""
    try:
        return reader.read(event)
    except (AssertionError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Refused(f"the inference server's feed is not understood ({error!r})") from error


def _impossible(report: TrafficReport) -> str:
    """Return the path of a report's value that cannot be true, such as ".arms.stable.errors"; "" for none."""
    parts: list[tuple[str, Mapping[str, Any], str]] = []
    for name, arm in report["arms"].items():
        parts += [(f".arms.{name}", arm, "requests"), (f".arms.{name}.window", arm.get("window") or {}, "requests")]
    shadow: Mapping[str, Any] = report["shadow"] or {}
    parts += [(".shadow", shadow, "compared"), (".shadow.dropped", shadow.get("dropped", {}), "")]
    for place, part, whole in parts:
        for key, value in part.items():
            if isinstance(value, int | float) and value < 0:
                return f"{place}.{key}"
        if part.get("errors", 0) > part.get(whole, 0):
            return f"{place}.errors"
    if any(len(one["samples"]) not in (0, 2) for one in report["guardrails"]):
        return ".guardrails.samples"
    trouble = shadow.get("trouble")
    return ".shadow.trouble.at" if trouble is not None and not 0 <= trouble["at"] < _FAR_FUTURE else ""


def _in_our_buckets(report: TrafficReport, buckets: BucketMap) -> TrafficReport:
    def read(latency: Latency) -> Latency:
        counts = {str(bucket): count for bucket, count in buckets.read(latency["counts"]).items()}
        return {"total": latency["total"], "sum_ns": latency["sum_ns"], "counts": counts}

    def of_arm(arm: ArmReport) -> ArmReport:
        found = arm.copy()
        found["latency"] = read(arm["latency"])
        if (window := arm.get("window")) is not None:
            found["window"] = {**window, "latency": read(window["latency"])}
        return found

    arms = {name: of_arm(arm) for name, arm in report["arms"].items()}
    shadow = report["shadow"]
    if shadow is not None:
        of_both = {name: read(shadow[name]) for name in ("stable_latency", "candidate_latency")}
        shadow = cast(ShadowReport, {**shadow, **of_both})
    return cast(TrafficReport, {**report, "arms": arms, "shadow": shadow})


def _held(memory: Memory) -> int:
    """Return the bytes on the host and on every GPU together; 0 if the server does not report them."""
    return int(memory.get("host_bytes", 0)) + sum(map(int, memory.get("gpu_bytes", {}).values()))

"""A counter of a server that fell is a restart: it began at zero, and what it counts now is new."""

from typing import Any

from dashboard.metrics.feed import NO_VERSION, FeedReader, Tick
from dashboard.servers.messages import HelloEvent, StatsEvent

NONE: Any = {"count": 0, "ns": 0}
EMPTY: Any = {"total": 0, "sum_ns": 0, "counts": {}}
PROCESS: Any = {"rss_bytes": 1, "cpu_seconds": 1.0, "threads": 1, "gpus": []}


def hello(instance: str, started: float) -> HelloEvent:
    return HelloEvent({"server_id": "s", "instance": instance, "started": started, "bounds_us": [1000, 2000]})


def stats(at: float, unserved: int, success: int = 0, hits: int = 0, counts: Any = None) -> StatsEvent:
    latency: Any = {"total": success, "sum_ns": 0, "counts": counts or {}}
    durations = dict.fromkeys(("fail", "cancel", "queue", "compute_input", "compute_infer", "compute_output"), NONE)
    histograms = {"queue_latency": EMPTY, "compute_latency": EMPTY, "request_latency": latency}
    version: Any = {"name": "digits", "version": "1", "state": "READY", "pending": 0, "in_flight": 0, **durations}
    version |= {"success": {"count": success, "ns": 0}, "inference_count": success, "execution_count": success}
    version |= {"failures": {}, "cache_hits": hits, "cache_misses": 0, "batches": {}, **histograms}
    return StatsEvent({"time": at, "server": PROCESS, "unserved": {"digits": unserved}, "models": [version]})


def test_counters_that_fell_and_those_of_another_process_begin_at_zero():
    reader = FeedReader()
    reader.read(hello("a", 1.0))
    assert reader.read(stats(10, 5, 100, 40, {"0": 100})) is None, "what was before the first event is not known"

    def grown(event: StatsEvent) -> tuple[int, dict[int, int], int, int]:
        found = reader.read(event)
        assert isinstance(found, Tick)
        usage, refused = found.models["digits", 1], found.models.get(("digits", NO_VERSION))
        return usage.success, usage.request, usage.cache_hits, refused.fail if refused else 0

    [low, high] = sorted(reader._buckets._ours.values())  # type: ignore[union-attr]
    assert grown(stats(11, 7, 103, 41, {"0": 101, "1": 2})) == (3, {low: 1, high: 2}, 1, 2)
    assert grown(stats(12, 7, 4, 1, {"1": 4})) == (4, {high: 4}, 1, 0), "it was loaded again"
    assert grown(stats(13, 3, 6, 0, {"1": 6})) == (6, {high: 6}, 0, 3), "only other counters fell"
    reader.read(hello("b", 13.5))
    assert grown(stats(14, 4, 9, 7, {"0": 9})) == (9, {low: 9}, 7, 4), "each counter is higher, of another process"


def test_news_is_what_a_server_tells_otherwise_than_before():
    reader = FeedReader()
    reader.read(hello("a", 1.0))
    reader.read(stats(10, 5, 100, 40, {"0": 100}))
    assert list(reader.news) == [("digits", 1)]
    reader.news.clear()
    reader.read(busy := stats(11, 6, 101, 40, {"0": 101}))
    assert not reader.news, "counters are no news"
    busy.data["models"][0]["state"] = "UNAVAILABLE"
    reader.read(busy)
    assert reader.news["digits", 1].state == "failed"
    assert reader.greeted == 1

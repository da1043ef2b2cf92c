"""Live points of an environment: one point a second, which is the sum of its servers."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from asgiref.sync import async_to_sync, sync_to_async

from dashboard.metrics import live
from dashboard.metrics.feed import Tick
from dashboard.metrics.points import Message, Point, together
from dashboard.metrics.samples import ProcessGauges
from dashboard.models import Server
from tests.dashboard.feeds import tick, usage
from tests.dashboard.processes import FixedServer, fixed_server
from tests.support.serving_process import PATIENCE_S

GPU: Any = {"uuid": "GPU-1", "utilization": 0.5, "memory_used": 1, "memory_total": 2, "power_w": None}


def point(server: str, second: Tick, state: str = "ready") -> Point:
    return Point(server, second, {("digits", 1): state})


def test_rates_and_memory_add_up_and_percentiles_are_of_all_requests():
    quick, slow = tick(100.2, digits=usage(98, 1000, pending=3)), tick(100.7, digits=usage(2, 100_000, pending=4))
    process: ProcessGauges = {"rss": 50 << 20, "cpu": 1.5, "threads": 4, "gpus": [GPU]}
    slow = Tick(100.7, 1.0, slow.models, process, {("digits", 1): 7}, {("digits", 1): {"digits_0": usage(2, 100_000)}})
    quick.memory["digits", 1] = 5
    quick.instances["digits", 1] = {"digits_0": usage(98, 1000)}
    points = [point("a", quick), point("b", slow, "loading"), point("c", tick(100.1))]
    alone = orjson.loads(together(points, ["d"]).text("digits"))
    assert (alone["server"], alone["at"], alone["missing"], alone["states"]) == ("", 100.7, ["d"], {"1": "ready"})
    figures = alone["models"]["digits"]
    assert (figures["rps"], figures["pending"]) == (100, 7)
    assert figures["p95"] == pytest.approx(1, rel=0.1)
    assert figures["p99"] > 90
    assert alone["memory"] == {"digits/1": 12}
    assert {key: one["rps"] for key, one in alone["instances"].items()} == {"1 digits_0 on a": 98, "1 digits_0 on b": 2}
    assert {key: one["rps"] for key, one in alone["servers"].items()} == {"on a": 98, "on b": 2, "on c": 0}
    assert (alone["process"]["rss"], alone["process"]["cpu"]) == (250 << 20, 2.5)
    assert alone["process"]["gpus"] == [GPU]
    everything = orjson.loads(together(points, []).text())
    assert everything["total"] == figures


def test_only_memory_that_has_changed_is_told_to_who_had_the_message_before():
    def second(at: float, held: dict[Any, int], before: Message | None = None) -> Point:
        busy = tick(at)
        parts = [point(name, Tick(at, 1.0, busy.models, busy.process, held)) for name in ("a", "b")]
        found = together(parts, [], before)
        found.follow(before)
        return found

    one, two = ("digits", 1), ("digits", 2)
    first = second(100.0, held := {one: 5, two: 6})
    same = second(101.0, held, first)
    other = second(102.0, {one: 5, two: 7}, same)
    fewer = second(103.0, {two: 7}, other)

    def told(message: Point, number: int) -> tuple[bool, dict[str, int]]:
        found = orjson.loads(message.text(number=number))
        return found["whole"], found["memory"]

    assert told(first, 0) == (True, {"digits/1": 10, "digits/2": 12})
    assert told(same, first.number) == (False, {})
    assert told(other, same.number) == (False, {"digits/2": 14})
    assert told(other, first.number) == (True, {"digits/1": 10, "digits/2": 14}), "a message was missed"
    assert told(fewer, other.number) == (True, {"digits/2": 14}), "a version is gone"


def test_servers_that_are_late_every_second_are_lost():
    async def scenario() -> Message:
        feed, news = live.SumFeed(live.LiveFeeds(), "production"), asyncio.Queue[Message]()
        queue: asyncio.Queue[Message] = asyncio.Queue()
        feed._queues.add(queue)
        adding = asyncio.create_task(feed._add_points(["a", "b"], news))
        for name in ("a", "b"):
            slow = tick(100.0, digits=usage(1, 1000))
            news.put_nowait(point(name, Tick(slow.time, 2.0, slow.models, slow.process)))
        async with asyncio.timeout(PATIENCE_S):
            message = await queue.get()
        adding.cancel()
        return message

    lost = orjson.loads(async_to_sync(scenario)().text())
    assert lost == {"type": "lost", "server": "", "message": "None of 2 servers answers: a is late."}


@pytest.fixture
def running(tmp_path: Path) -> Iterator[list[FixedServer]]:
    with fixed_server(tmp_path / "models") as one, fixed_server(tmp_path / "models") as other:
        one.start()
        other.start()
        yield [one, other]


@pytest.mark.long
@pytest.mark.django_db
def test_a_server_that_hangs_or_is_lost_is_missing_until_it_is_back_and_a_new_one_is_noticed(
    running: list[FixedServer], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "SERVERS_S", 0.2)

    def add(name: str, server: FixedServer) -> Server:
        return Server.objects.create(name=name, **server.addresses())

    async def told(queue: "asyncio.Queue[Message]", fits: Callable[[Any], bool]) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not fits(found := orjson.loads((await queue.get()).text())):
                pass
        return found

    async def scenario() -> None:
        first, second = running
        await sync_to_async(add)("one", first)
        feeds = live.LiveFeeds()
        async with feeds.subscribe_sum("production") as queue:
            alone = await told(queue, lambda found: found["type"] == "point")
            assert alone["server"] == "one", "the sum of one server is its own point"
            await sync_to_async(add)("two", second)
            both = await told(queue, lambda found: found.get("missing") == [])
            assert both["process"]["rss"] > 1.5 * alone["process"]["rss"]
            assert second.process is not None
            os.kill(second.process.pid, signal.SIGSTOP)
            await told(queue, lambda found: found.get("missing") == ["two"])
            os.kill(second.process.pid, signal.SIGCONT)
            await told(queue, lambda found: found.get("missing") == [])
            await asyncio.to_thread(second.kill)
            await told(queue, lambda found: found.get("missing") == ["two"])
            await asyncio.to_thread(first.kill)
            lost = await told(queue, lambda found: found["type"] == "lost")
            assert lost["message"].startswith("None of 2 servers answers: ")
            await asyncio.to_thread(second.start)
            await told(queue, lambda found: found.get("missing") == ["one"])
            await sync_to_async(Server.objects.all().delete)()
            gone = await told(queue, lambda found: found["type"] == "lost")
            assert gone["message"] == "There is no server in production."
            await sync_to_async(add)("three", second)
            await told(queue, lambda found: found.get("server") == "three")
        assert len(feeds) == 0
        assert not [task for task in asyncio.all_tasks() if "live feed" in task.get_name()]

    async_to_sync(scenario)()

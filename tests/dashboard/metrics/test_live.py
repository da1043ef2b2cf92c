"""Live points: one subscription for all watchers, one point a second, figures that match what was sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from dashboard.metrics import live
from dashboard.metrics.feed import NO_VERSION
from dashboard.models import Server
from tests.dashboard.processes import FixedServer, fixed_server
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.long
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}]}
WRONG = {"inputs": []}


@pytest.fixture
def inference(tmp_path: Path) -> Iterator[FixedServer]:
    with fixed_server(tmp_path / "models") as server:
        model_factory.onnx_identity(tmp_path / "models", "identity", dims=[1])
        yield server


@pytest.fixture
def server(inference: FixedServer) -> Server:
    return Server(pk=1, name="local", bundled=True, **inference.addresses())


@pytest.fixture(scope="module")
def idle_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that runs, for tests that send it no requests and leave it running."""
    repository: Path = tmp_path_factory.mktemp("idle") / "models"
    with fixed_server(repository) as inference:
        model_factory.onnx_identity(repository, "identity", dims=[1])
        inference.start()
        yield Server(pk=1, name="local", bundled=True, **inference.addresses())


async def load(server: Server) -> None:
    async with live.AsyncServerClient(server) as client:
        await client.load("identity")


@asynccontextmanager
async def asking(server: Server, body: Any = BODY) -> AsyncIterator[None]:
    """A client that sends request after request."""

    async def ask() -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            while True:
                await client.post(f"{server.http_url}/v2/models/identity/infer", json=body)
                await asyncio.sleep(0.01)

    task = asyncio.create_task(ask())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def message(queue: "asyncio.Queue[live.Message]", fits: Callable[[dict[str, Any]], bool], model: str = "") -> Any:
    """The first message that fits."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = orjson.loads((await queue.get()).text(model))
            if fits(found):
                return found


def busy(found: dict[str, Any]) -> bool:
    return found["type"] == "point" and "identity" in found["models"] and found["models"]["identity"]["rps"] > 0


def test_a_watcher_after_a_failed_feed_begins_it_anew(idle_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    follow = live.follow_feed

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        feed = live.LiveFeed(idle_server)
        monkeypatch.setattr(live, "follow_feed", broken)
        first = feed.join()
        await asyncio.wait([task for task in asyncio.all_tasks() if task.get_name().startswith("live feed")])
        monkeypatch.setattr(live, "follow_feed", follow)
        second = feed.join()
        for queue in (first, second):
            await message(queue, lambda found: found["type"] == "point")
            await feed.leave(queue)

    asyncio.run(scenario())


def test_points_say_what_the_model_did_and_when(inference: FixedServer, server: Server):
    inference.start()

    async def scenario() -> None:
        await load(server)
        async with live.LiveFeeds().subscribe(server) as queue, asking(server):
            await message(queue, busy)
            asked_at = time.time()
            point = await message(queue, lambda found: busy(found) and found["at"] > asked_at)
            figures = point["models"]["identity"]
            assert figures["p50"] <= figures["p95"] <= figures["p99"]
            assert figures["errors"] == 0
            assert figures["inferences"] == pytest.approx(2 * figures["rps"], rel=0.01)
            assert set(figures["batch"]) <= {str(size) for size in range(1, 9)}
            assert point["process"]["rss"] > 10 << 20
            assert point["memory"]
            assert point["total"]["rps"] == figures["rps"]
            alone = await message(queue, busy, model="identity")
            assert set(alone["models"]) == {"identity"}
            assert alone["states"] == {"1": "ready"}
            assert alone["versions"]["1"]["rps"] == alone["models"]["identity"]["rps"]
            assert set(alone["instances"]) <= {"1 identity_0", "1 identity_1"}, "the two of an ONNX model"
            assert sum(one["rps"] for one in alone["instances"].values()) == pytest.approx(
                alone["versions"]["1"]["rps"], rel=0.01
            )

    asyncio.run(scenario())


def test_refused_requests_are_errors(inference: FixedServer, server: Server):
    inference.start()

    async def scenario() -> None:
        await load(server)
        async with live.LiveFeeds().subscribe(server) as queue, asking(server, WRONG):
            point = await message(queue, busy)
            figures = point["models"]["identity"]
            assert figures["errors"] > 0
            by_reason = sum(figures[name] for name in ("failed_model", "failed_rejected", "failed_other"))
            assert by_reason == pytest.approx(figures["errors"], rel=0.01)
            assert point["models"]["identity"]["p50"] is None

    asyncio.run(scenario())


def test_the_share_of_the_cache_is_shown_for_models_that_have_one(
    inference: FixedServer, server: Server, tmp_path: Path
):
    model_factory.onnx_identity(tmp_path / "models", "identity", dims=[1], extra="response_cache { enable: true }")
    inference.start("--cache-config=local,size=1000000")

    async def scenario() -> None:
        await load(server)
        async with live.LiveFeeds().subscribe(server) as queue, asking(server):
            point = await message(queue, lambda found: busy(found) and found["models"]["identity"]["cache_share"] == 1)
            assert point["models"]["identity"]["rps"] > 0
            alone = await message(queue, busy, model="identity")
            assert list(alone["memory"]) == ["identity/1"]

    asyncio.run(scenario())


def test_an_idle_model_is_shown_as_zero_to_whom_asks_for_it(idle_server: Server):
    async def scenario() -> None:
        async with live.LiveFeeds().subscribe(idle_server) as queue:
            point = await message(queue, lambda found: found["type"] == "point", model="identity")
            assert point["models"]["identity"]["rps"] == 0

    asyncio.run(scenario())


def test_all_watchers_share_one_subscription_which_ends_with_the_last(idle_server: Server):
    async def scenario() -> None:
        feeds = live.LiveFeeds()
        async with feeds.subscribe(idle_server) as first:
            await first.get()
            async with feeds.subscribe(idle_server) as second:
                assert not second.empty(), "who comes later is told the newest point at once"
                assert len(feeds) == 1
        assert len(feeds) == 0
        assert not [task for task in asyncio.all_tasks() if "live feed" in task.get_name()]

    asyncio.run(scenario())


def test_a_watcher_that_does_not_keep_up_holds_up_nobody(idle_server: Server):
    async def scenario() -> None:
        feeds = live.LiveFeeds()
        async with feeds.subscribe(idle_server) as slow, feeds.subscribe(idle_server) as quick:
            times: list[float] = []
            while len(times) < live.KEPT_MESSAGES + 2 or not quick.empty():
                times.append(orjson.loads((await quick.get()).text())["at"])
            assert slow.qsize() == live.KEPT_MESSAGES
            assert orjson.loads((await slow.get()).text())["at"] == times[-live.KEPT_MESSAGES]

    asyncio.run(scenario())


def test_a_lost_feed_is_said_once_and_comes_back_by_itself(inference: FixedServer, server: Server):
    inference.start()

    async def scenario() -> None:
        async with live.LiveFeeds().subscribe(server) as queue:
            await queue.get()
            await asyncio.to_thread(inference.kill)
            lost = await message(queue, lambda found: found["type"] == "lost")
            assert "does not answer" in lost["message"]
            await asyncio.to_thread(inference.start)
            await load(server)
            async with asking(server):
                again = await message(queue, lambda found: found["type"] == "lost" or busy(found))
                assert again["type"] == "point"

    asyncio.run(scenario())


def test_requests_that_found_no_version_serving_are_errors_of_the_model(inference: FixedServer, server: Server):
    inference.start()

    async def scenario() -> None:
        await load(server)
        async with live.AsyncServerClient(server) as client:
            await client.unload("identity")
        async with live.LiveFeeds().subscribe(server) as queue, asking(server):
            reported = await message(
                queue, lambda found: bool(found.get("models", {}).get("identity", {}).get("errors"))
            )
            assert reported["models"]["identity"]["failed_rejected"] > 0
            assert reported["models"]["identity"]["rps"] == reported["models"]["identity"]["errors"]
            assert reported["total"]["errors"] > 0
            alone = await message(queue, lambda found: "versions" in found, "identity")
            assert set(alone["versions"]) <= {str(NO_VERSION)}, "it is of no version"

    asyncio.run(scenario())

"""Arms on another server, and mirrors, as parts of a model's rollout."""

import asyncio
import json
from collections.abc import Iterator

import pytest

from serving.core.errors import ServingError
from tests.serving.in_process import core, response
from tests.serving.traffic.rollouts_in_process import ONE, count_answers, parameter, policy, reload, scale
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose model `scale` has one version, 7, that multiplies by 7."""
    repository = tmp_path_factory.mktemp("elsewhere")
    model_factory.onnx_scale(repository, factor=7.0, version=7)
    with ServerProcess(repository) as server:
        yield server


@pytest.fixture
def listed(tmp_path, elsewhere):
    path = tmp_path / "remotes.json"
    path.write_text(json.dumps({elsewhere.http_url: {}}))
    return path


def report(server):
    (rollout,) = server._manager.rollouts
    return rollout.report()


@pytest.mark.parametrize("protocol", ["v2", "v2-grpc"])
async def test_a_model_on_another_server_answers_as_an_arm(tmp_path, elsewhere, listed, protocol):
    url = elsewhere.http_url if protocol == "v2" else f"http://{elsewhere.grpc}"
    listed.write_text(json.dumps({url: {}}))
    there = {"url": url, "protocol": protocol}
    scale(tmp_path / "models", policy(50, candidate=there))
    async with core(tmp_path / "models", load_model=("scale",), traffic_remotes=listed) as server:
        found = await count_answers(server, 60)
        assert set(found) == {1, 7}
        arms = report(server)["arms"]
        assert (arms["candidate"]["requests"], arms["candidate"]["remote"]) == (found[7], url)
        assert arms["stable"]["requests"] == found[1]
        await reload(server, tmp_path / "models", policy(0, candidate=there))
        assert await count_answers(server, 5) == {1: 5}
        stable = parameter("traffic", {"rollout": "r-2", "candidate": 2, "stable": there, "weight": 0})
        await reload(server, tmp_path / "models", stable)
        assert await count_answers(server, 5) == {7: 5}
        assert await count_answers(server, 5, model_version="2") == {2: 5}


async def test_ending_a_rollout_lets_the_other_server_answer_what_it_was_given(tmp_path, elsewhere, listed):
    scale(tmp_path / "models", policy(100, candidate={"url": elsewhere.http_url}))
    async with core(tmp_path / "models", load_model=("scale",), traffic_remotes=listed) as server:
        asked = [asyncio.create_task(count_answers(server)) for _ in range(20)]
        await asyncio.sleep(0)
        await reload(server, tmp_path / "models", policy(0))
        assert [await one for one in asked] == [{7: 1}] * 20


async def test_a_server_that_is_not_listed_is_not_called(tmp_path, elsewhere, listed):
    scale(tmp_path / "models", policy(0))
    async with core(tmp_path / "models", load_model=("scale",), traffic_remotes=listed) as server:
        with pytest.raises(ServingError, match="is not listed in --traffic-remotes"):
            await reload(server, tmp_path / "models", policy(50, candidate={"url": "http://localhost:9"}))
        guardrail = {"metric": "prometheus", "url": "http://localhost:9", "stable": "1", "candidate": "1"}
        with pytest.raises(ServingError, match="is not listed in --traffic-remotes"):
            await reload(server, tmp_path / "models", policy(50, guardrails=[guardrail]))
        assert await count_answers(server, 5) == {1: 5}
        assert report(server)["asked_weight"] == 0


async def test_a_server_that_is_gone_fails_its_share_alone_and_counts(tmp_path, listed):
    listed.write_text('{"http://127.0.0.1:9": {}}')
    scale(tmp_path / "models", policy(100, candidate={"url": "http://127.0.0.1:9"}))
    async with core(tmp_path / "models", load_model=("scale",), traffic_remotes=listed) as server:
        with pytest.raises(ServingError, match="the server at"):
            await response(server, "scale", ONE)
        assert report(server)["arms"]["candidate"]["errors"] == 1
        assert await count_answers(server, 5, model_version="1") == {1: 5}


async def test_a_shadow_compares_answers_and_affects_none(tmp_path):
    scale(tmp_path, policy(0, shadow={"share": 100}))
    async with core(tmp_path, load_model=("scale",)) as server:
        assert await count_answers(server, 10) == {1: 10}
        async with asyncio.timeout(PATIENCE_S):
            while (shadow := report(server)["shadow"])["compared"] + sum(shadow["dropped"].values()) < 10:
                await asyncio.sleep(0.005)
        assert shadow["disagreed"] == shadow["compared"] > 0
        assert (shadow["max_absolute"], shadow["mean_absolute"]) == (1.0, 1.0)
        assert report(server)["arms"]["candidate"]["requests"] == 0  # mirrors are no requests of clients
        (rollout,) = server._manager.rollouts
        rollout.breach(0, "a test says so")
        assert await count_answers(server, 10) == {1: 10}
        after = report(server)["shadow"]
        assert (after["compared"], after["dropped"]) == (
            shadow["compared"],
            shadow["dropped"],
        )  # none is wanted any more
        await reload(server, tmp_path, policy(0))
        assert report(server)["shadow"] is None

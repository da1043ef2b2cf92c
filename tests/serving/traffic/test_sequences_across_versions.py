"""A sequence ends on the version on which it began, although weights, aliases, releases and versions change meanwhile."""

import asyncio
import json

import numpy as np
import pytest

from serving.core.errors import ServingError
from serving.core.request import SequencePosition
from serving.traffic.remotes.open_sequences import OpenSequences
from tests.serving.in_process import core, index, response
from tests.serving.traffic.rollouts_in_process import BOTH, parameter, policy
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S, ServerProcess

pytestmark = pytest.mark.asyncio

LATEST = "version_policy { latest { num_versions: 1 } }"
IDLE_FOREVER = "max_sequence_idle_microseconds: 3600000000 direct { }"


def accumulators(repository, text, *versions, idle=IDLE_FOREVER):
    """A model `sum`, each version of which adds up what its sequences give it; its configuration ends with `text`."""
    for version in versions:
        folder = model_factory.onnx_sequence_sum(repository, "sum", version=version, extra=BOTH)
    config = folder / "config.pbtxt"
    config.write_text(config.read_text().replace("direct { }", idle) + text)


async def reload(server, repository, text, versions=BOTH):
    """Take a configuration that ends with `text`, and nothing else new."""
    config = repository / "sum/config.pbtxt"
    config.write_text(config.read_text().partition("version_policy")[0] + f"{versions}\n{text}")
    await server.load_model("sum")


async def ask(server, sequence, value, flags="", version="", model="sum"):
    """(version, total)"""
    answer = await response(
        server,
        model,
        {"INPUT": np.array([[value]], np.float32)},
        model_version=version,
        sequence_id=sequence,
        sequence_start="s" in flags,
        sequence_end="e" in flags,
    )
    return answer.model_version, answer.outputs["OUTPUT"].item()


async def until_freed(server, version):
    async with asyncio.timeout(PATIENCE_S):
        while index(server)["sum", str(version)][0] != "UNAVAILABLE":
            await asyncio.sleep(0.005)


async def test_a_weight_decides_where_sequences_begin_and_not_where_they_go_on(tmp_path):
    accumulators(tmp_path, policy(0), 1, 2)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await ask(server, 7, 1, "s") == (1, 1)
        for text, name in (
            (policy(100), "new"),
            (policy(0), "back"),
            (policy(100, rollout="r-2"), "other"),
            ("", "none"),
        ):
            await reload(server, tmp_path, text)
            begins = (1 if name == "back" else 2, 10)
            assert await ask(server, name, 10, "s") == begins
        assert await ask(server, 7, 1) == (1, 2)
        assert await ask(server, "back", 1, "e") == (1, 11)
        assert await ask(server, "new", 1, "e", version="default") == (2, 11)
        assert await ask(server, 7, 1, "e") == (1, 3)
        with pytest.raises(ServingError, match="must specify the START flag"):
            await ask(server, 7, 1)
        report = [rollout.report() for rollout in server._manager.rollouts]
        assert report == []


async def test_requests_of_sequences_count_for_the_arm_where_they_are(tmp_path):
    accumulators(tmp_path, policy(0), 1, 2)
    async with core(tmp_path, load_model=("sum",)) as server:
        await ask(server, 1, 1, "s")
        await reload(server, tmp_path, policy(100))
        await ask(server, 1, 1, "e")
        (report,) = [rollout.report() for rollout in server._manager.rollouts]
        assert {name: arm["requests"] for name, arm in report["arms"].items()} == {"stable": 2, "candidate": 0}


async def test_an_ensemble_with_a_rollout_of_its_own_keeps_its_sequences(tmp_path):
    def ensemble(weight):
        maps = 'input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "OUTPUT" }'
        step = f'step {{ model_name: "sum" model_version: -1 {maps} }}'
        tensors = [model_factory.tensors_text(kind, [(kind.upper(), "FP32", [1])]) for kind in ("input", "output")]
        text = f'platform: "ensemble" max_batch_size: 8 {" ".join(tensors)} ensemble_scheduling {{ {step} }}'
        model_factory.write_config(tmp_path / "whole", f"{text} {BOTH} {policy(weight)}")

    accumulators(tmp_path, "", 1)
    for version in (1, 2):
        (tmp_path / f"whole/{version}").mkdir(parents=True)
    ensemble(100)
    async with core(tmp_path, load_model=("whole",)) as server:
        assert await ask(server, 7, 1, "s", model="whole") == (2, 1)
        ensemble(0)
        await server.load_model("whole")
        assert await ask(server, 8, 1, "s", model="whole") == (1, 1)
        assert await ask(server, 7, 2, model="whole") == (2, 3)
        assert await ask(server, 7, 3, "e", model="whole") == (2, 6)
        assert await ask(server, 7, 1, "s", model="whole") == (1, 1)


@pytest.mark.parametrize("name", ["champion", "default", ""])
async def test_an_alias_may_move_in_the_middle_of_a_sequence(tmp_path, name):
    accumulators(tmp_path, parameter("aliases", {"champion": 1, "default": 1}), 1, 2)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await ask(server, 5, 1, "s", name) == (1, 1)
        await reload(server, tmp_path, parameter("aliases", {"champion": 2, "default": 2}))
        assert await ask(server, 5, 1, "", name) == (1, 2)
        assert await ask(server, 6, 1, "s", name) == (2, 1)
        assert await ask(server, 5, 9, "s", name) == (2, 9)  # begun anew, where the name leads now
        assert await ask(server, 5, 1, "e", name) == (2, 10)


async def test_a_sequence_goes_on_under_an_alias_that_is_no_more(tmp_path):
    accumulators(tmp_path, parameter("aliases", {"champion": 1}), 1)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await ask(server, 5, 1, "s", "champion") == (1, 1)
        await reload(server, tmp_path, "")
        assert await ask(server, 5, 1, "", "champion") == (1, 2)
        with pytest.raises(ServingError, match="expected a positive number"):
            await ask(server, 6, 1, "s", "champion")
        assert await ask(server, 5, 1, "e", "champion") == (1, 3)


async def test_a_new_release_waits_for_the_sequences_of_the_old_one_to_end(tmp_path):
    accumulators(tmp_path, "", 1)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await ask(server, 5, 1, "s") == (1, 1)
        assert await ask(server, 6, 1, "s", "1") == (1, 1)
        old = server._manager.resolve("sum", "")
        (tmp_path / "sum/1/model.onnx").touch()
        await server.load_model("sum")  # the same version anew
        model_factory.onnx_sequence_sum(tmp_path, "sum", version=2)
        await reload(server, tmp_path, "", LATEST)  # and another one in its place
        assert index(server)["sum", "1"][0] == "UNLOADING"
        assert await ask(server, 5, 1) == (1, 2)
        assert await ask(server, 5, 1, version="1") == (1, 3)  # by its number, too
        for version in ("1", "01"):
            with pytest.raises(ServingError, match="version 1 is not at ready state"):
                await ask(server, 8, 1, "s", version)
        assert await ask(server, 8, 1, "s") == (2, 1)
        assert await ask(server, 5, 1, "e") == (1, 4)
        assert index(server)["sum", "1"][0] == "UNLOADING"
        assert await ask(server, 6, 1, "e") == (1, 2)
        await until_freed(server, 1)
        assert not old.instances
        with pytest.raises(ServingError, match="must specify the START flag"):
            await ask(server, 6, 1)


async def test_a_silent_sequence_is_not_waited_for_beyond_its_idle_time(tmp_path):
    idle = "max_sequence_idle_microseconds: 200000 direct { }"
    accumulators(tmp_path, "", 1, 2, idle=idle)
    async with core(tmp_path, load_model=("sum",)) as server:
        assert await ask(server, 5, 1, "s", "1") == (1, 1)
        await reload(server, tmp_path, "", LATEST)
        await until_freed(server, 1)


async def test_a_shutdown_waits_for_no_sequence(tmp_path):
    accumulators(tmp_path, "", 1, 2)
    async with core(tmp_path, load_model=("sum",)) as server:
        await ask(server, 5, 1, "s", "1")
        await ask(server, 6, 1, "s")
        await reload(server, tmp_path, "", LATEST)
        async with asyncio.timeout(PATIENCE_S):
            await server.drain(3600)


async def test_a_model_with_one_version_and_no_sequence_elsewhere_takes_requests_itself(tmp_path):
    accumulators(tmp_path, "", 1)
    async with core(tmp_path, load_model=("sum",)) as server:
        (lifecycle,) = server._manager._models
        assert lifecycle.default_destination is lifecycle.default
        await ask(server, 5, 1, "s")
        (tmp_path / "sum/1/model.onnx").touch()
        await server.load_model("sum")
        assert lifecycle.default_destination is not lifecycle.default
        await ask(server, 5, 1, "e")
        async with asyncio.timeout(PATIENCE_S):
            await lifecycle.drained()
        assert lifecycle.default_destination is lifecycle.default


async def test_a_sequence_stays_on_another_server_or_here_whatever_the_weight_becomes(tmp_path):
    accumulators(tmp_path / "there", "", 7)
    with ServerProcess(tmp_path / "there") as elsewhere:
        listed = tmp_path / "remotes.json"
        listed.write_text(json.dumps({elsewhere.http_url: {}}))
        here, there = tmp_path / "here", {"url": elsewhere.http_url}
        accumulators(here, policy(0, candidate=there), 1)
        async with core(here, load_model=("sum",), traffic_remotes=listed) as server:
            assert await ask(server, 1, 1, "s") == (1, 1)
            await reload(server, here, policy(100, candidate=there))
            assert await ask(server, 2, 1, "s") == (7, 1)
            assert await ask(server, 3, 1, "s") == (7, 1)
            assert await ask(server, 1, 1) == (1, 2)
            await reload(server, here, policy(0, candidate=there))
            assert await ask(server, 2, 1, "e") == (7, 2)
            (report,) = [rollout.report() for rollout in server._manager.rollouts]
            assert {name: arm["requests"] for name, arm in report["arms"].items()} == {"stable": 2, "candidate": 3}
            await reload(server, here, "")
            assert await ask(server, 3, 1) == (7, 2)  # also behind the end of the rollout
            assert await ask(server, 1, 1, "e") == (1, 3)
            assert await ask(server, 4, 1, "s") == (1, 1)
            async with asyncio.timeout(PATIENCE_S):
                await server.drain(3600)  # which waits for no sequence


async def test_a_sequence_on_another_server_is_forgotten_with_its_end_or_when_it_was_idle_too_long():
    for position, idle_s in (
        (SequencePosition(1, start=True, end=True), 3600),
        (SequencePosition(1, start=True), 0.01),
    ):
        sequences = OpenSequences(idle_s)
        task = asyncio.create_task(asyncio.sleep(0))
        sequences.follow(position, task)
        assert sequences.start_ns(1) > 0
        assert sequences.before(1) is task
        async with asyncio.timeout(PATIENCE_S):
            await sequences.wait_until_ended()
        assert sequences.start_ns(1) == 0

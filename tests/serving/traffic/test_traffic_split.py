"""Sharing requests without a version between stable and candidate."""

import asyncio
from collections import Counter

import numpy as np
import pytest

from serving.core.errors import ServingError
from serving.core.in_flight import InFlightRequest
from serving.core.request import InferenceRequest
from serving.traffic.arms import Arm, ArmCounter
from serving.traffic.figures import ArmFigures
from tests.serving.gate import until
from tests.serving.in_process import core, response
from tests.serving.traffic.rollouts_in_process import BOTH, ONE, count_answers, parameter, policy, reload, scale
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio

# Of 600 requests at 25 per cent 150 go to the candidate; less than 80 or more than 230 in one of 10^10 runs.
MANY, FEWEST, MOST = 600, 80, 230


async def test_requests_without_a_version_are_shared_by_the_weight(tmp_path):
    scale(tmp_path, policy(0))
    async with core(tmp_path, load_model=("scale",)) as server:
        assert await count_answers(server, 20) == {1: 20}
        await reload(server, tmp_path, policy(25))
        for version in ("", "-1", "default"):
            assert FEWEST < (await count_answers(server, MANY, model_version=version))[2] < MOST
        await reload(server, tmp_path, policy(100))
        assert await count_answers(server, 20) == {2: 20}
        await reload(server, tmp_path, "")
        assert await count_answers(server, 20) == {2: 20}  # the highest


async def test_requests_that_name_a_version_are_never_shared(tmp_path):
    scale(tmp_path, policy(100))
    async with core(tmp_path, load_model=("scale",)) as server:
        for name, version in (("1", 1), ("01", 1), ("champion", 1), ("2", 2)):
            assert await count_answers(server, 10, model_version=name) == {version: 10}
        assert server.resolved_version("scale") == 1  # metadata and configuration are those of the stable version
        with pytest.raises(ServingError, match="version 3 is not found"):
            await count_answers(server, model_version="3")


@pytest.mark.parametrize("sticky", [{"parameter": "user"}, {"id": True}], ids=["parameter", "id"])
async def test_a_key_stays_on_its_arm_and_moves_to_the_candidate_only(tmp_path, sticky):
    keys = [f"key-{number}" for number in range(200)]

    def of(key):
        return {"id": key} if "id" in sticky else {"parameters": {"user": key}}

    before: set[str] = set()
    scale(tmp_path, policy(0, sticky=sticky))
    async with core(tmp_path, load_model=("scale",)) as server:
        for weight in (10, 40, 100):
            await reload(server, tmp_path, policy(weight, sticky=sticky))
            now = {key for key in keys if await count_answers(server, **of(key)) == {2: 1}}
            assert before <= now
            assert now == {key for key in keys if await count_answers(server, **of(key)) == {2: 1}}
            before = now
            if weight == 40:
                assert 30 < len(now) < 130
                kept = now
                assert 0 < (await count_answers(server, 60))[2] < 60  # without a key it is drawn
        assert len(before) == 200
    async with core(tmp_path, load_model=("scale",)) as server:  # another process would say the same
        await reload(server, tmp_path, policy(40, sticky=sticky))
        assert kept == {key for key in keys if await count_answers(server, **of(key)) == {2: 1}}


async def test_another_rollout_draws_its_keys_anew(tmp_path):
    async def chosen(server):
        return {number for number in range(100) if await count_answers(server, id=f"k{number}") == {2: 1}}

    scale(tmp_path, policy(50, sticky={"id": True}))
    async with core(tmp_path, load_model=("scale",)) as server:
        first = await chosen(server)
        await reload(server, tmp_path, policy(50, sticky={"id": True}, rollout="r-2"))
        assert first != await chosen(server)


async def test_steps_of_ensembles_follow_the_policy_of_their_model_or_pin_a_version(tmp_path):
    scale(tmp_path, policy(100))
    folder = model_factory.pass_on_ensemble(tmp_path, "follows", "scale", max_batch_size=8)
    text = (folder / "config.pbtxt").read_text()
    assert "model_version: -1" in text
    pinned = model_factory.pass_on_ensemble(tmp_path, "pinned", "scale", max_batch_size=8) / "config.pbtxt"
    pinned.write_text(pinned.read_text().replace("model_version: -1", "model_version: 1"))
    async with core(tmp_path, load_model=("follows", "pinned")) as server:
        for ensemble, factor in (("follows", 2.0), ("pinned", 1.0)):
            outputs = (await response(server, ensemble, ONE)).outputs
            assert next(iter(outputs.values())).item() == factor


async def test_a_mirror_of_an_ensemble_takes_the_same_versions_of_its_steps_and_counts_for_none_of_them(tmp_path):
    scale(tmp_path, policy(50))
    folder = model_factory.pass_on_ensemble(tmp_path, "twins", "scale", max_batch_size=8)
    (folder / "2").mkdir()
    text = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(text + BOTH + policy(0, shadow={"share": 100}))
    async with core(tmp_path, load_model=("twins",)) as server:
        rollouts = {one.identifier.name: one for one in server.rollouts}
        async with asyncio.timeout(PATIENCE_S):
            while (found := rollouts["twins"].report()["shadow"])["compared"] < 20:
                await response(server, "twins", ONE)
        assert (found["disagreed"], found["failed"]) == (0, 0)
        asked, *of_step = (
            sum(arm["requests"] for arm in rollouts[name].report()["arms"].values()) for name in ("twins", "scale")
        )
        assert of_step == [asked]


async def test_requests_that_one_request_causes_are_answered_by_one_version(tmp_path):
    scale(tmp_path, policy(50))
    steps = " ".join(
        f'step {{ model_name: "scale" model_version: -1 input_map {{ key: "INPUT0" value: "INPUT0" }} '
        f'output_map {{ key: "OUTPUT0" value: "{name}" }} }}'
        for name in "AB"
    )
    tensors = [model_factory.tensors_text("input", [("INPUT0", "FP32", [1])])]
    tensors += [model_factory.tensors_text("output", [(name, "FP32", [1]) for name in "AB"])]
    text = f'platform: "ensemble" max_batch_size: 8 {" ".join(tensors)} ensemble_scheduling {{ {steps} }}'
    model_factory.write_config(tmp_path / "pair", text)
    (tmp_path / "pair/1").mkdir()
    async with core(tmp_path, load_model=("pair",)) as server:
        answers = [(await response(server, "pair", ONE)).outputs for _ in range(40)]
        assert {(answer["A"].item(), answer["B"].item()) for answer in answers} == {(1.0, 1.0), (2.0, 2.0)}


async def test_the_requests_of_a_sequence_stay_together_where_no_scheduler_holds_them(tmp_path):
    scale(tmp_path, policy(50, sticky={"id": True}))
    async with core(tmp_path, load_model=("scale",)) as server:
        sides = {number: await count_answers(server, 10, id="x", sequence_id=number) for number in range(1, 30)}
        assert all(len(versions) == 1 for versions in sides.values())
        assert {version for versions in sides.values() for version in versions} == {1, 2}


async def test_the_policy_changes_in_the_middle_of_traffic_without_a_failed_request(tmp_path):
    scale(tmp_path, policy(0))
    answered: Counter[int] = Counter()
    async with core(tmp_path, load_model=("scale",)) as server:
        models = [server._manager.resolve("scale", version) for version in ("1", "2")]
        done = asyncio.Event()

        async def ask():
            while not done.is_set():
                answered.update(await count_answers(server))

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        for text in (policy(5), policy(50), policy(100), policy(0), policy(50, rollout="r-2"), "", policy(30)):
            await reload(server, tmp_path, text)
            before = answered.total()
            while answered.total() < before + 20:
                await asyncio.sleep(0)
        done.set()
        await asyncio.gather(*asking)
        assert [server._manager.resolve("scale", version) for version in ("1", "2")] == models  # nothing was loaded
    assert answered[1]
    assert answered[2]


async def test_a_replaced_candidate_answers_by_its_new_model(tmp_path):
    scale(tmp_path, policy(100))
    async with core(tmp_path, load_model=("scale",)) as server:
        assert await count_answers(server) == {2: 1}
        model_factory.onnx_scale(tmp_path, factor=20.0, version=2, extra="version_policy { all {} }\n" + policy(100))
        await server.load_model("scale")
        assert (await response(server, "scale", ONE)).outputs["OUTPUT0"].item() == 20.0


async def test_a_candidate_that_sleeps_is_woken_by_its_share(tmp_path):
    asleep = parameter("residency", {"mode": "on_demand"})
    scale(tmp_path, policy(100), asleep)
    async with core(tmp_path, load_model=("scale",)) as server:
        assert [version for version in ("1", "2") if server._manager.resolve("scale", version).pending] == []
        assert await count_answers(server, 3) == {2: 3}
        assert await count_answers(server, 3, model_version="1") == {1: 3}


async def test_requests_that_wait_for_a_sleeping_candidate_go_to_the_stable_version_after_a_breach(tmp_path):
    scale(tmp_path, policy(100), parameter("residency", {"mode": "on_demand"}))
    async with core(tmp_path, load_model=("scale",)) as server:
        (lifecycle,) = server._manager._models
        (rollout,) = server._manager.rollouts
        async with lifecycle.lock:  # so that the candidate cannot wake
            asking = [asyncio.create_task(count_answers(server)) for _ in range(3)]
            await until(lambda: rollout.candidate.pending() == 3, "requests that wait")
            rollout.breach(0, "it is too slow")
        assert [await one for one in asking] == [{1: 1}] * 3
        stable, candidate = rollout.stable.figures, rollout.candidate.figures
        assert (stable.requests, candidate.requests, candidate.withdrawn) == (3, 0, 3)


async def test_the_response_cache_keeps_the_answers_of_each_version_apart(tmp_path):
    scale(tmp_path, policy(50), "response_cache { enable: true }\n")
    size = (("local", "size", str(1 << 20)),)
    async with core(tmp_path, load_model=("scale",), cache_config=size) as server:
        found = await count_answers(server, 60)
        assert found[1]
        assert found[2]
        hits = {one.model_version: one.cache_hit.count for one in server.version_statistics("scale")}
        assert hits == {1: found[1] - 1, 2: found[2] - 1}


async def test_a_policy_that_cannot_be_served_keeps_the_serving_one(tmp_path):
    scale(tmp_path, policy(100))
    async with core(tmp_path, load_model=("scale",)) as server:
        for text, said in (
            (policy(10, candidate=7), "version 7, which the version policy does not serve"),
            (policy(10, candidate=1), "is version 1, which the alias 'default' means"),
            (policy(1000), "expected 'weight' to be a number from 0 to 100, not 1000"),
        ):
            with pytest.raises(ServingError, match=said):
                await reload(server, tmp_path, text)
            assert await count_answers(server) == {2: 1}


async def test_an_unloaded_model_has_no_rollout_and_begins_it_again(tmp_path):
    scale(tmp_path, policy(100))
    async with core(tmp_path, load_model=("scale",)) as server:
        await server.unload_model("scale")
        with pytest.raises(ServingError, match="has no available versions"):
            await count_answers(server)
        await server.load_model("scale")
        assert await count_answers(server) == {2: 1}


async def test_requests_of_each_arm_are_counted(tmp_path):
    scale(tmp_path, policy(100))
    async with core(tmp_path, load_model=("scale",)) as server:
        await count_answers(server, 5)
        with pytest.raises(ServingError, match="INPUT0"):
            await response(server, "scale", {"INPUT0": np.zeros((1, 2), np.int32)})
        await reload(server, tmp_path, policy(0))
        await count_answers(server, 3)
        (report,) = [rollout.report() for rollout in server._manager.rollouts]
        arms = {
            name: (arm["version"], arm["requests"], arm["errors"], arm["withdrawn"])
            for name, arm in report["arms"].items()
        }
        assert arms == {"stable": ("1", 3, 0, 0), "candidate": ("2", 5, 0, 1)}
        assert (report["rollout"], report["weight"], report["asked_weight"]) == ("r-1", 0, 0)
        await reload(server, tmp_path, policy(50, rollout="r-2"))
        (report,) = [rollout.report() for rollout in server._manager.rollouts]
        assert [arm["requests"] for arm in report["arms"].values()] == [0, 0]


async def test_a_model_that_is_stopped_because_its_asker_has_enough_has_answered():
    arm = Arm("candidate", 2, None, ArmFigures(60))
    for end in (InFlightRequest.end_early, InFlightRequest.cancel):
        request = InFlightRequest.unanswered(InferenceRequest("writer", {}))
        ArmCounter(arm).begin(request)
        end(request)
    assert (arm.figures.requests, arm.figures.errors, arm.figures.withdrawn) == (1, 0, 1)


async def test_the_log_tells_of_a_candidate_that_cannot_take_the_requests_of_the_stable_version(tmp_path, caplog):
    text = f'backend: "onnxruntime" {BOTH} {policy(50)}'
    for version, datatype in ((1, "FP32"), (2, "FP64")):
        model_factory.onnx_identity(tmp_path, "same", datatype, [1], version=version, config=text)
    async with core(tmp_path, load_model=("same",)):
        assert "version 2 has input 'INPUT0' as FP64 [-1, 1], not FP32 [-1, 1]" in caplog.text

"""A candidate that breaches a guardrail gets no more requests, for as long as its rollout has its name."""

import asyncio
import contextlib
from collections import Counter

import pytest

from serving.core.errors import ServingError
from tests.serving.in_process import core, response
from tests.serving.traffic.rollouts_in_process import ONE, count_answers, parameter, policy, reload, scale
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio

FAILS_ON_TWO = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([], pb_utils.TritonError("no")) for _ in requests]
"""


def replace_candidate(models, source):
    """Make a Python model of version 2."""
    (models / "scale/2/model.onnx").unlink()
    (models / "scale/2/model.py").write_text(source)
    (models / "scale/2/slipway.pbtxt").write_text('default_model_filename: "model.py"')
    config = models / "scale/config.pbtxt"
    config.write_text(config.read_text().replace('backend: "onnxruntime"', ""))


def report(server):
    (rollout,) = server._manager.rollouts
    return rollout.report()


async def test_a_failing_candidate_is_taken_out_and_stays_out(tmp_path, caplog):
    caplog.set_level("INFO", "serving.traffic")
    models, state = tmp_path / "models", tmp_path / "traffic.json"
    limits = {"guardrails": [{"metric": "errors"}], "min_samples": 20}
    scale(models, policy(50, **limits))
    replace_candidate(models, FAILS_ON_TWO)
    async with core(models, load_model=("scale",), traffic_state=state) as server:
        async with asyncio.timeout(PATIENCE_S):
            while report(server)["breach"] is None:
                with contextlib.suppress(ServingError):
                    await response(server, "scale", ONE)
        assert await count_answers(server, 30) == {1: 30}
        first = report(server)
        assert (first["weight"], first["asked_weight"], first["breach"]["guardrail"]) == (0, 50, 0)
        assert first["breach"]["reason"] == first["guardrails"][0]["detail"]
        assert first["guardrails"][0]["state"] == "breached"
        await reload(server, models, policy(90, **limits))
        assert await count_answers(server, 30) == {1: 30}
        said = [
            record.getMessage().partition("of 'scale': ")[2]
            for record in caplog.records
            if record.name == "serving.traffic.rollout"
        ]
        assert said[0] == "version 2 gets 50 % of the requests that name no version, version 1 the others"
        assert said[-1].startswith(
            f"version 2 gets no more requests (the policy says 90 %): {first['breach']['reason']}"
        )
    async with core(models, load_model=("scale",), traffic_state=state) as server:  # as after a restart
        assert await count_answers(server, 30) == {1: 30}
        assert report(server)["breach"] == first["breach"]
        assert report(server)["guardrails"][0]["state"] == "breached"
        await server.unload_model("scale")
        await server.load_model("scale")
        assert await count_answers(server, 30) == {1: 30}
        await reload(server, models, policy(100, rollout="r-2"))
        with pytest.raises(ServingError, match="no"):
            await count_answers(server)
        await reload(server, models, policy(0))
        assert report(server)["breach"] is None  # it was another rollout since


WAITS_AT_GATE = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        while not os.path.exists({gate!r}):
            time.sleep(0.01)
        array = np.full((1, 1), 2, np.float32)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for _ in requests]
"""


@pytest.mark.parametrize("way", ["breach", "weight", "end"])
async def test_requests_that_wait_for_a_candidate_that_is_taken_out_go_to_stable(tmp_path, way):
    models, gate = tmp_path / "models", tmp_path / "gate"
    scale(models, policy(100))
    replace_candidate(models, WAITS_AT_GATE.format(gate=str(gate)))
    async with core(models, load_model=("scale",)) as server:
        asked = [asyncio.ensure_future(count_answers(server)) for _ in range(20)]
        named = asyncio.ensure_future(count_answers(server, model_version="2"))
        await asyncio.sleep(0)
        (rollout,) = server._manager.rollouts
        if way == "breach":
            rollout.breach(0, "it hangs")
        else:
            await reload(server, models, policy(0) if way == "weight" else parameter("aliases", {"default": 1}))
        async with asyncio.timeout(PATIENCE_S):
            while sum(one.done() for one in asked) < 15:  # the process has begun with the first few
                await asyncio.sleep(0.01)
        gate.touch()
        found = sum(await asyncio.gather(*asked), Counter())
        assert found[1] >= 15
        assert await named == {2: 1}
        if way != "end":
            arms = rollout.report()["arms"]
            assert (arms["stable"]["requests"], arms["candidate"]["requests"]) == (found[1], found[2])
            assert arms["candidate"]["withdrawn"] == found[1]


async def test_a_rollout_without_requests_has_no_news(tmp_path):
    """What it tells goes to all who listen whenever it is another word."""
    scale(tmp_path / "models", policy(50, guardrails=[{"metric": "errors"}, {"metric": "latency"}]))
    async with core(tmp_path / "models", load_model=("scale",)) as server:
        (rollout,) = server._manager.rollouts
        rollout.tick()
        first = rollout.report()
        for _ in range(5):
            rollout.tick()
        assert rollout.report() == first

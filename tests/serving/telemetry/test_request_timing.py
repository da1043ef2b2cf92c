"""The answer says how long the request waited and how long its batch took, if the request asks for that."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.serving.frontends.raw_http import RawClient, infer_body, tensor
from tests.serving.in_process import core, response
from tests.support.pipelines import chain, ensemble

PATH = "/v2/models/identity_fp32/infer"


def test_a_request_that_asks_for_its_times_gets_them(raw: RawClient) -> None:
    body = {**json.loads(infer_body(tensor([1.0]))), "parameters": {"slipway_timing": True}}
    asked_at = time.perf_counter_ns()
    answer = raw.request("POST", PATH, json.dumps(body).encode())
    took_us = (time.perf_counter_ns() - asked_at) / 1000
    assert answer.status == 200
    reported = answer.json["parameters"]
    assert 0 < reported["slipway_queue_us"] + reported["slipway_compute_us"] <= took_us


def test_a_request_that_does_not_ask_is_not(raw: RawClient) -> None:
    answer = raw.request("POST", PATH, infer_body(tensor([1.0])))
    assert answer.status == 200
    assert "parameters" not in answer.json


@pytest.mark.asyncio
async def test_an_ensemble_tells_the_times_of_its_steps(tmp_path: Path) -> None:
    ensemble(tmp_path, chain(tmp_path))
    async with core(tmp_path, load_model=("pipeline",)) as server:
        asked = {"parameters": {"slipway_timing": True}}
        reported = (await response(server, "pipeline", {"X": np.ones((1, 1), np.float32)}, **asked)).parameters
        plain = await response(server, "pipeline", {"X": np.ones((1, 1), np.float32)})
    steps = json.loads(str(reported["slipway_steps"]))
    assert [step["model"] for step in steps] == ["double", "triple"]
    for name in ("slipway_queue_us", "slipway_compute_us"):
        assert reported[name] == sum(step[name] for step in steps)
    assert not any(name.startswith("slipway") for name in plain.parameters)

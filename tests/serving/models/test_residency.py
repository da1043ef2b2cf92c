"""slipway.residency: loaded on the first request, unloaded when idle, evicted when a budget is reached, or pinned."""

import asyncio
import json
import threading

import numpy as np
import pytest

from repository.config.model_config import parse
from repository.config.validation import validate
from serving.core.errors import Code, ServingError
from serving.models import residency
from serving.resources import allocator, memory
from serving.resources.memory import files_bytes
from tests.serving.gate import until
from tests.serving.in_process import core, index, infer
from tests.serving.requests import in_flight
from tests.serving.traffic.rollouts_in_process import policy
from tests.support import model_factory
from tests.support.serving_process import PATIENCE_S

pytestmark = pytest.mark.asyncio
ONE = {"INPUT0": np.ones((1, 1), np.float32)}
MB = 1 << 20
LARGE = (1024, 4096, 1024)  # 32 MB of weights


@pytest.fixture(autouse=True)
def _fast_clock(monkeypatch):
    monkeypatch.setattr(residency, "PERIOD_S", 0.02)


def asking_for(mode, **more):
    value = json.dumps(json.dumps({"mode": mode, **more}))
    return f'parameters {{ key: "slipway.residency" value {{ string_value: {value} }} }}'


def asleep(server, name, version="1"):
    state, reason = index(server)[name, version]
    return state == "UNAVAILABLE" and reason.startswith("asleep:")


async def factor(server, name, **fields):
    return float((await infer(server, name, ONE, **fields))["OUTPUT0"][0, 0])


async def test_a_model_on_demand_loads_on_its_first_request_and_sleeps_again_when_idle(tmp_path):
    model_factory.onnx_scale(tmp_path, extra=asking_for("on_demand", idle_seconds=0.3))
    async with core(tmp_path, model_control_mode="none") as server:
        assert asleep(server, "scale")
        assert server.ready()
        assert server.model_ready("scale")
        assert server.model_metadata("scale").inputs[0].name == "INPUT0"
        assert server.model_config("scale").instance_group[0].count
        assert not server.model_statistics("scale").model_stats[0].memory_usage
        assert await factor(server, "scale") == 2
        assert index(server)["scale", "1"] == ("READY", "")
        await until(lambda: asleep(server, "scale"), "sleep")
        assert await factor(server, "scale") == 2
        assert server.model_statistics("scale").model_stats[0].inference_stats.success.count == 2


async def test_requests_that_wait_for_the_load_are_answered_in_order_and_may_be_cancelled(tmp_path):
    model_factory.python_scale(tmp_path, "scale", factor=3, extra=asking_for("on_demand"))
    async with core(tmp_path, model_control_mode="none") as server:
        answered, requests = [], []
        for number in range(6):
            inputs = {"INPUT0": np.full((1, 1), number, np.float32)}
            request = in_flight("scale", inputs, lambda answer, final, number=number: answered.append((number, answer)))
            server.infer(request)
            requests.append(request)
        requests[2].cancel()
        assert answered[0][0] == 2
        assert answered[0][1].code is Code.CANCELLED
        await until(lambda: len(answered) == 6, "answers")
        assert [number for number, _ in answered[1:]] == [0, 1, 3, 4, 5]
        assert [float(answer.outputs["OUTPUT0"][0, 0]) for _, answer in answered[1:]] == [0, 3, 9, 12, 15]


async def test_a_failed_load_fails_all_waiting_requests_and_a_later_request_tries_again(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.models.sleeping_model.RETRY_S", 0.05)
    folder = model_factory.onnx_scale(tmp_path, extra=asking_for("on_demand"))
    async with core(tmp_path, model_control_mode="none") as server:
        path = folder / "1" / "model.onnx"
        whole = path.read_bytes()
        path.write_bytes(whole[:20])
        results = await asyncio.gather(*(factor(server, "scale") for _ in range(3)), return_exceptions=True)
        assert {result.code for result in results} == {Code.UNAVAILABLE}
        assert len({str(result) for result in results}) == 1
        assert "could not be loaded for its first request" in str(results[0])
        assert asleep(server, "scale")
        assert "the last load failed" in index(server)["scale", "1"][1]
        path.write_bytes(whole)
        await asyncio.sleep(0.06)
        assert await factor(server, "scale") == 2


async def test_a_wrong_request_to_a_sleeping_model_is_refused_with_the_reason(tmp_path):
    model_factory.onnx_scale(tmp_path, extra=asking_for("on_demand"))
    async with core(tmp_path, model_control_mode="none") as server:
        with pytest.raises(ServingError) as caught:
            await infer(server, "scale", {"NOPE": ONE["INPUT0"]})
        assert caught.value.code is Code.INVALID_ARG


async def test_a_broken_model_on_demand_is_refused_when_it_is_asked_for(tmp_path):
    folder = model_factory.onnx_scale(tmp_path, extra=asking_for("on_demand"))
    (folder / "1" / "model.onnx").write_bytes(b"not a model")
    async with core(tmp_path) as server:
        with pytest.raises(ServingError):
            await server.load_model("scale")
        assert not server.model_ready("scale")


async def test_a_sleeping_step_wakes_for_its_ensemble(tmp_path):
    model_factory.onnx_scale(tmp_path, "step", extra=asking_for("on_demand"))
    text = model_factory.tensors_text("input", [("IN", "FP32", [1])])
    text += model_factory.tensors_text("output", [("OUT", "FP32", [1])])
    steps = 'step [ { model_name: "step" model_version: -1'
    steps += ' input_map { key: "INPUT0" value: "IN" } output_map { key: "OUTPUT0" value: "OUT" } } ]'
    model_factory.write_config(
        tmp_path / "both",
        f'name: "both" platform: "ensemble" max_batch_size: 8 {text} ensemble_scheduling {{ {steps} }}',
    )
    (tmp_path / "both" / "1").mkdir()
    async with core(tmp_path, model_control_mode="none") as server:
        assert asleep(server, "step")
        outputs = await infer(server, "both", {"IN": ONE["INPUT0"]})
        assert outputs["OUT"][0, 0] == 2


async def test_a_sleeping_model_is_reloaded_unloaded_and_pinned_like_any_other(tmp_path):
    folder = model_factory.onnx_scale(tmp_path, extra=asking_for("on_demand"))
    async with core(tmp_path) as server:
        await server.load_model("scale")
        model_factory.onnx_scale(tmp_path, factor=5, extra=asking_for("on_demand"))
        await server.load_model("scale")
        assert asleep(server, "scale")
        assert await factor(server, "scale") == 5
        model_factory.onnx_scale(tmp_path, factor=7, extra=asking_for("on_demand"))
        await server.load_model("scale")
        assert index(server)["scale", "1"][0] == "READY"  # it was in use: the new one takes over at once
        assert await factor(server, "scale") == 7
        await server.unload_model("scale")
        await until(lambda: index(server)["scale", "1"] == ("UNAVAILABLE", "unloaded"), "the end")
        await server.load_model("scale")
        assert asleep(server, "scale")
        config = (folder / "config.pbtxt").read_text()
        (folder / "config.pbtxt").write_text(config.replace("on_demand", "pinned"))
        await server.load_model("scale")
        assert index(server)["scale", "1"] == ("READY", "")


async def test_unloading_while_the_first_request_loads_leaves_nobody_without_an_answer(tmp_path):
    model_factory.python_scale(tmp_path, "scale", extra=asking_for("on_demand"))
    async with core(tmp_path) as server:
        await server.load_model("scale")
        asked = asyncio.ensure_future(factor(server, "scale"))
        await asyncio.sleep(0)
        await server.unload_model("scale")
        [result] = await asyncio.gather(asked, return_exceptions=True)
        assert result == 2 or isinstance(result, ServingError)
        assert not server.model_ready("scale")


async def test_the_least_recently_used_evictable_model_makes_room_and_comes_back_on_its_next_request(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(memory, "resident_bytes", lambda: 0)  # each model holds what its files do, on every run
    inputs = {"INPUT": np.ones((1, 1024), np.float32)}
    for name in ("pinned", "first", "second"):
        mode = "pinned" if name == "pinned" else "evictable"
        model_factory.onnx_mlp(tmp_path, name, LARGE, extra=asking_for(mode))
    async with core(tmp_path, memory_budget=int(files_bytes(tmp_path / "pinned" / "1") * 2.5)) as server:
        for name in ("pinned", "first", "second"):
            await server.load_model(name)
        # No room for both: the later one waits for a request rather than push out what nobody has used yet.
        await infer(server, "pinned", inputs)
        await infer(server, "second", inputs)
        await until(lambda: asleep(server, "first"), "first to make room")
        assert index(server)["second", "1"][0] == "READY"
        await infer(server, "first", inputs)
        await until(lambda: asleep(server, "second"), "second to make room")
        assert index(server)["pinned", "1"][0] == "READY"


def watched(folder, monkeypatch, fit, extra=""):
    """Two versions of a model, both evictable; the budget for so many of them."""
    monkeypatch.setattr(memory, "resident_bytes", lambda: 0)
    for version in (1, 2):
        text = asking_for("evictable") + "version_policy { all {} }" + extra
        model_factory.onnx_mlp(folder, "watched", LARGE, version=version, extra=text)
    return core(folder, memory_budget=int(files_bytes(folder / "watched" / "1") * fit), load_model=("watched",))


@pytest.mark.parametrize(("fit", "dropped"), [(1.5, 5), (2.5, 0)])
async def test_a_shadow_wakes_no_candidate_for_which_others_would_have_to_sleep(tmp_path, monkeypatch, fit, dropped):
    inputs = {"INPUT": np.ones((1, 1024), np.float32)}
    async with watched(tmp_path, monkeypatch, fit, policy(0, shadow={"share": 100})) as server:
        await infer(server, "watched", inputs, model_version="1")
        await until(lambda: asleep(server, "watched", "2") == bool(dropped), "what has no room to sleep")
        shadow = server.rollout("watched").mirror.figures
        for done in range(1, 6):
            await infer(server, "watched", inputs)
            await until(lambda done=done: shadow.compared + sum(shadow.dropped.values()) == done, "the mirror")
        assert shadow.dropped["memory"] == dropped


async def test_a_server_that_ends_waits_for_models_that_go_to_sleep(tmp_path, monkeypatch):
    freeing, freed = threading.Event(), threading.Event()
    monkeypatch.setattr(allocator, "_return_memory", lambda: freeing.set() or freed.wait(PATIENCE_S))
    async with watched(tmp_path, monkeypatch, 1.5) as server:
        for version in ("1", "2"):
            await infer(server, "watched", {"INPUT": np.ones((1, 1024), np.float32)}, model_version=version)
        await until(freeing.is_set, "one of them to go to sleep")
        asyncio.get_running_loop().call_later(0.05, freed.set)  # while the server ends
    assert freed.is_set()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('"pinned"', "an object such as"),
        ('{"mode": "sometimes"}', "pinned, on_demand, evictable"),
        ('{"mode": "on_demand", "idle_seconds": 0}', "a number over 0"),
        ('{"mode": "on_demand", "idle_second": 5}', "not 'idle_second'"),
    ],
)
async def test_a_wrong_residency_is_a_problem_of_the_configuration(value, expected):
    parameter = f'parameters {{ key: "slipway.residency" value {{ string_value: {json.dumps(value)} }} }}'
    problems = validate(parse(f'name: "m" backend: "python" {parameter}'), name="m")
    [problem] = [problem for problem in problems if "residency" in str(problem)]
    assert expected in str(problem)

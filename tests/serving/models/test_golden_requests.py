"""Golden requests: a new model answers them before it serves clients; after any failure the old one keeps serving."""

import asyncio
import os
import signal

import numpy as np
import pytest

from repository.core.condition import Condition
from repository.core.golden import ExampleRequest, GoldenRequest, Tolerance
from serving.core.errors import Code
from serving.core.example_tensors import from_array
from serving.core.request import InferenceRequest, SequencePosition
from serving.models import model_lifecycle
from serving.models.golden_requests import GoldenCheck
from serving.models.load_report import LoadStopped, Step
from tests.serving.gate import GateBackend, until, write_gated
from tests.serving.in_process import core, index_rows, infer
from tests.support import model_factory
from tests.support.serving_process import new_descendants

pytestmark = [pytest.mark.asyncio, pytest.mark.long]
ON_DEMAND = 'parameters { key: "slipway.residency" value { string_value: "{\\"mode\\": \\"on_demand\\"}" } }'


def column(*values):
    return np.array(values, np.float32).reshape(-1, 1)


def golden(expected, *values, model="scale", seconds=30.0, name="one", flat=False, **fields):
    """A request of INPUT0 with these values, and the OUTPUT0 that is expected."""
    shape = -1 if flat else (-1, 1)
    asked = InferenceRequest(model, {"INPUT0": column(*values or (1.0,)).reshape(shape)}, **fields)
    return prepared(name, asked, column(*expected).reshape(shape), seconds=seconds)


def prepared(name, asked, expected, output="OUTPUT0", seconds=30.0):
    """A golden request with the one output that it expects."""
    request, digest = ExampleRequest([], [], {}), f"{asked.inputs} {expected}"
    golden = GoldenRequest(name, request, [from_array(output, expected)], digest, Tolerance(), seconds)
    return GoldenCheck(golden, asked)


async def failed(server, *checks, model="scale"):
    """The error of a load with these golden requests."""
    with pytest.raises(LoadStopped) as caught:
        await server.load_model(model, golden=checks)
    error = caught.value
    assert error.report.steps[-1].failed
    assert not any(step.failed for step in error.report.steps[:-1])
    return error


async def checked(server, *checks, model="scale"):
    """The results of the golden requests of a load that went well."""
    report = await server.load_model(model, golden=checks)
    return next(step.checks for step in report.steps if step.step is Step.GOLDEN)


async def factor(server, model="scale"):
    return float((await infer(server, model, {"INPUT0": column(1.0)}))["OUTPUT0"][0, 0])


def row(server, model="scale", version="1"):
    return next(one for one in index_rows(server) if (one.name, one.version) == (model, version))


async def test_a_model_that_answers_as_expected_is_switched_to_and_the_steps_are_reported(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0)
    async with core(tmp_path) as server:
        report = await server.load_model("scale", golden=[golden([2.0]), golden([2.0, 4.0], 1.0, 2.0, name="two")])
        assert [step.step for step in report.steps] == [*Step]
        results = report.steps[4].checks
        assert [(one.name, one.version, one.passed, one.detail) for one in results] == [
            ("one", 1, True, "all values are equal"),
            ("two", 1, True, "all values are equal"),
        ]
        assert (
            await server.load_model("scale", golden=[golden([7.0])])
        ).steps == []  # nothing is built, nothing changes


async def test_the_first_golden_request_that_fails_keeps_the_serving_model(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0)
    async with core(tmp_path, load_model=("scale",)) as server:
        before = server._manager.resolve("scale", "")
        model_factory.onnx_scale(tmp_path, factor=3.0)
        error = await failed(server, golden([3.0]), golden([2.0], name="two"), golden([3.0], name="three"))
        assert error.code is Code.INVALID_ARG
        assert error.message == (
            "load failed for model 'scale': version 1 is at UNAVAILABLE state: golden request 'two' failed: output 'OUTPUT0' "
            "is 3, expected 2, the largest difference is 1"
        )
        assert f"load failed for model 'scale': version 1 is at UNAVAILABLE state: {error.reason}" == error.message
        assert [(one.name, one.passed) for one in error.report.steps[-1].checks] == [("one", True), ("two", False)]
        assert server._manager.resolve("scale", "") is before
        assert await factor(server) == 2.0
        assert (row(server).state, row(server).failed, row(server).loading) == ("READY", True, None)
        assert "golden request 'two' failed" in row(server).reason
        await checked(server, golden([3.0]))
        assert await factor(server) == 3.0
        assert not row(server).failed


async def test_golden_requests_are_no_traffic_and_leave_the_response_cache_alone(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0, extra="response_cache { enable: true }")
    async with core(tmp_path, cache_config=(("local", "size", "1000000"),)) as server:
        await checked(server, golden([2.0]))
        (counted,) = server.statistics()
        assert (counted.success.count, counted.execution_count, counted.request_latency.total) == (0, 0, 0)
        assert counted.load_s > 0
        assert await factor(server) == 2.0  # in the cache from here on
        (counted,) = server.statistics()
        assert (counted.cache_hit.count, counted.cache_miss.count, counted.success.count) == (0, 1, 1)
        model_factory.onnx_scale(tmp_path, factor=3.0, extra="response_cache { enable: true }")
        await failed(server, golden([2.0]))  # the old answer is in the cache
        (counted,) = server.statistics()
        assert (counted.fail.count, counted.success.count, counted.cache_miss.count) == (0, 1, 1)


async def test_a_python_model_an_ensemble_and_a_batching_model_are_asked(tmp_path):
    model_factory.python_scale(tmp_path, "python", factor=4.0)
    model_factory.onnx_scale(tmp_path, factor=3.0, extra="dynamic_batching { }")
    model_factory.pass_on_ensemble(tmp_path, "pipeline", "scale", max_batch_size=8)
    async with core(tmp_path) as server:
        assert (await checked(server, golden([4.0], model="python"), model="python"))[0].passed
        assert (await checked(server, golden([3.0, 6.0], 1, 2, model="pipeline"), model="pipeline"))[0].passed
        assert await factor(server, "pipeline") == 3.0
        await server.unload_model("pipeline")
        error = await failed(server, golden([9.0, 9.0], 1, 2, model="pipeline"), model="pipeline")
        assert "is 3 at [0, 0], expected 9" in error.message


ODD = """
    import os
    import signal
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                value = float(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().flat[0])
                if value == 1:
                    raise RuntimeError("out of order")
                if value == 2:
                    time.sleep(1)
                if value == 5:
                    os.kill(os.getpid(), signal.SIGSTOP)
                out = np.full((1, 1), float("nan") if value == 3 else value, np.float32)
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
            return answers
"""
ODD_CONFIG = """name: "odd" backend: "python" max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] }"""


@pytest.mark.parametrize(
    ("value", "seconds", "said"),
    [
        (1.0, 30, "the answer was an error: Failed to process the request(s)"),
        (2.0, 0.1, "no answer came within 0.1 s"),
        (3.0, 30, "is nan, expected 3"),
    ],
)
async def test_a_model_that_raises_hangs_or_answers_nan_does_not_pass(tmp_path, value, seconds, said):
    model_factory.python_model(tmp_path, "odd", ODD, ODD_CONFIG)
    async with core(tmp_path) as server:
        error = await failed(server, golden([value], value, model="odd", seconds=seconds), model="odd")
        assert said in error.message
        assert row(server, "odd").state in ("UNLOADING", "UNAVAILABLE")
        await checked(server, golden([4.0], 4.0, model="odd"), model="odd")
        assert row(server, "odd").state == "READY"


async def test_a_process_that_stands_still_does_not_hold_up_the_load(tmp_path):
    model_factory.python_model(tmp_path, "odd", ODD, ODD_CONFIG)
    async with core(tmp_path, load_model=("odd",)) as server:
        config = tmp_path / "odd/1/model.py"
        config.write_text(config.read_text() + "# changed")
        try:
            error = await failed(server, golden([5.0], 5.0, model="odd", seconds=0.2), model="odd")
            assert "no answer came within 0.2 s" in error.message
            assert (await infer(server, "odd", {"INPUT0": column(4.0)}))["OUTPUT0"].item() == 4.0
        finally:
            for process in new_descendants():
                os.kill(process, signal.SIGCONT)


async def test_a_request_that_does_not_fit_the_model_fails_the_check(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path) as server:
        asked = InferenceRequest("scale", {"INPUT9": column(1.0)})
        error = await failed(server, prepared("old", asked, column(1.0)))
        assert (
            "golden request 'old' failed: the answer was an error: unexpected inference input 'INPUT9' for model 'scale', "
            "which needs 'INPUT0' in its place" in error.message
        )


async def test_a_sequence_must_begin_and_end_in_its_golden_request(tmp_path):
    model_factory.onnx_sequence_controls(tmp_path)
    async with core(tmp_path) as server:
        half = golden([5.0], 5.0, model="counted", sequence=SequencePosition(7, start=True))
        assert "has to begin and end its own" in (await failed(server, half, model="counted")).message
        whole = golden([5.0], 5.0, model="counted", sequence=SequencePosition(7, start=True, end=True))
        again = golden([6.0], 6.0, model="counted", sequence=SequencePosition(7, start=True, end=True))
        assert all(one.passed for one in await checked(server, whole, again, model="counted"))


async def test_a_decoupled_model_has_to_answer_exactly_once(tmp_path):
    model_factory.python_decoupled(tmp_path)
    async with core(tmp_path) as server:
        for count in (3.0, 0.0):
            asked = golden([0.0], count, model="decoupled", flat=True)
            said = (await failed(server, asked, model="decoupled")).message
            assert f"the model is decoupled and gave {count:g} responses" in said
        asked = golden([0.0], -1.0, model="decoupled", flat=True)
        assert "below 0" in (await failed(server, asked, model="decoupled")).message
        asked = golden([0.0], 1.0, model="decoupled", flat=True)
        assert (await checked(server, asked, model="decoupled"))[0].passed


async def test_a_model_that_would_sleep_is_awake_for_its_golden_requests(tmp_path):
    model_factory.onnx_scale(tmp_path, factor=2.0, extra=ON_DEMAND)
    async with core(tmp_path) as server:
        await failed(server, golden([3.0]))
        assert (await checked(server, golden([2.0])))[0].passed
        assert row(server).condition is Condition.NONE
        assert await factor(server) == 2.0


async def test_no_version_is_switched_where_one_does_not_pass(tmp_path):
    both = "version_policy { all {} }"
    model_factory.onnx_scale(tmp_path, factor=2.0, version=1)
    model_factory.onnx_scale(tmp_path, factor=5.0, version=2, extra=both)
    async with core(tmp_path) as server:
        error = await failed(server, golden([2.0]))
        assert [(one.version, one.passed) for one in error.report.steps[-1].checks] == [(1, True), (2, False)]
        assert "not loaded, because version 2" in row(server, version="1").reason
        assert not server.model_ready("scale")


def release(folder, number):
    """Stamp the text of a model with the next release."""
    text = (folder / "config.pbtxt").read_text().split("parameters")[0]
    stamp = f'parameters {{ key: "slipway.release" value {{ string_value: "{number}" }} }}'
    (folder / "config.pbtxt").write_text(text + stamp)


async def test_a_model_that_keeps_serving_is_sent_only_new_golden_requests(tmp_path):
    folder = model_factory.onnx_scale(tmp_path, factor=2.0)
    async with core(tmp_path) as server:
        await checked(server, golden([2.0]))
        release(folder, 4)
        before = server._manager.resolve("scale", "")
        report = await server.load_model("scale", golden=[golden([2.0]), golden([4.0], 2.0, name="two")])
        assert [step.step for step in report.steps] == [Step.CHECK, Step.GOLDEN, Step.SWITCH, Step.DRAIN]
        assert report.release == 4
        assert [(one.name, one.passed, one.detail) for one in report.steps[1].checks] == [
            ("one", True, "the loaded model keeps serving and passed it before"),
            ("two", True, "all values are equal"),
        ]
        (counted,) = server.statistics()
        assert counted.success.count == 1  # what serves counts it
        release(folder, 5)
        error = await failed(server, golden([2.0]), golden([7.0], 2.0, name="three"))
        assert "golden request 'three' failed" in error.message
        assert (row(server).state, row(server).release) == ("READY", 4)
        assert server._manager.resolve("scale", "") is before
        release(folder, 6)
        assert [one.ms for one in await checked(server, golden([2.0]), golden([4.0], 2.0, name="two"))] == [0, 0]
        assert row(server).release == 6


async def test_a_model_that_sleeps_wakes_for_a_golden_request_that_it_has_not_answered(tmp_path):
    folder = model_factory.onnx_scale(tmp_path, factor=2.0, extra=ON_DEMAND)
    stamps = [
        ON_DEMAND + f'parameters {{ key: "slipway.release" value {{ string_value: "{number}" }} }}' for number in (1, 2)
    ]
    text = (folder / "config.pbtxt").read_text()
    async with core(tmp_path, load_model=("scale",)) as server:
        assert row(server).condition is Condition.ASLEEP
        (folder / "config.pbtxt").write_text(text.replace(ON_DEMAND, stamps[0]))
        await failed(server, golden([3.0]))
        assert row(server).condition is Condition.ASLEEP
        (folder / "config.pbtxt").write_text(text.replace(ON_DEMAND, stamps[1]))
        assert (await checked(server, golden([2.0])))[0].passed
        assert (row(server).condition, row(server).release) == (Condition.NONE, 2)


async def test_where_a_load_is_can_be_seen_and_unloading_ends_it(tmp_path):
    write_gated(tmp_path, extra='parameters { key: "slipway.release" value { string_value: "8" } }')
    asked = prepared("waits", InferenceRequest("gated", {"IN": column(1.0)}), column(2.0), "OUT")
    async with core(tmp_path) as server:
        loading = asyncio.get_running_loop().create_task(server.load_model("gated", golden=[asked, asked]))
        try:
            await until(lambda: index_rows(server)[0].loading and _step(server) == "golden", "golden requests")
            assert index_rows(server)[0].loading == (8, "golden", 0, 2)
            assert index_rows(server)[0].state == "LOADING"
            (reported,) = server.all_statistics()
            assert reported.status.loading == (8, "golden", 0, 2)
            await server.unload_model("gated")
            with pytest.raises(LoadStopped, match="it was unloaded while its golden requests ran") as caught:
                await loading
            assert caught.value.code is Code.UNAVAILABLE
            assert not server.model_ready("gated")
        finally:
            GateBackend.latest.gate.set()
        GateBackend.loads = 0
        loading = asyncio.get_running_loop().create_task(server.load_model("gated", golden=[asked]))
        await until(lambda: GateBackend.loads, "the second load")
        GateBackend.latest.gate.set()
        await loading
        assert index_rows(server)[0].state == "READY"


def _step(server):
    return index_rows(server)[0].loading.step


async def test_a_load_whose_caller_goes_away_goes_on(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path) as server:
        caller = asyncio.get_running_loop().create_task(server.load_model("scale", golden=[golden([2.0])]))
        await until(lambda: index_rows(server)[0].state == "LOADING", "the load")
        caller.cancel()
        await until(lambda: server.model_ready("scale"), "the model")


async def test_a_check_that_raises_fails_the_load_alone(tmp_path, monkeypatch):
    async def broken(*_):
        raise RuntimeError("no such luck")

    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, model_load_retry_count=0) as server:
        with monkeypatch.context() as patched:
            patched.setattr(model_lifecycle, "run", broken)
            error = await failed(server, golden([2.0]))
            assert error.code is Code.INTERNAL
        assert (await checked(server, golden([2.0])))[0].passed


async def test_a_failed_golden_request_is_not_retried(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, model_load_retry_count=3) as server:
        error = await failed(server, golden([3.0]))
        assert len(error.report.steps) == 5
        assert "trying again" not in error.message


async def test_a_shutdown_does_not_wait_for_golden_requests(tmp_path):
    model_factory.python_sleeper(tmp_path)
    async with core(tmp_path) as server:
        asked = golden([2.0], 2.0, model="sleeper", seconds=600)
        loading = asyncio.get_running_loop().create_task(server.load_model("sleeper", golden=[asked]))
        await until(lambda: index_rows(server)[0].loading and _step(server) == "golden", "golden requests")
        await server.drain(30)
        with pytest.raises(LoadStopped):
            await loading


async def test_a_load_that_finds_nothing_changed_leaves_the_drain_before_it_shown(tmp_path):
    model_factory.python_sleeper(tmp_path)
    async with core(tmp_path, load_model=("sleeper",)) as server:
        asked = asyncio.get_running_loop().create_task(infer(server, "sleeper", {"INPUT0": column(1.0)}))
        await until(lambda: server.statistics()[0].status.in_flight, "the request")
        source = tmp_path / "sleeper/1/model.py"
        source.write_text(source.read_text() + "# changed")
        report = await server.load_model("sleeper")
        if report.steps[-1].under_way:  # it is not answered yet
            assert (await server.load_model("sleeper")).steps == []
            if not asked.done():
                assert row(server, "sleeper").loading == (None, "drain", 0, 1)
        await asked
        await until(lambda: row(server, "sleeper").loading is None, "the end of the drain")


async def test_a_missing_model_is_reported_without_steps(tmp_path):
    async with core(tmp_path) as server:
        with pytest.raises(LoadStopped, match="there is no model of that name") as caught:
            await server.load_model("nobody")
        assert (caught.value.code, caught.value.report.steps) == (Code.NOT_FOUND, [])

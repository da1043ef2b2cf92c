"""Ensembles with decoupled steps: a response for each, in order, whatever follows; wrong ones refused."""

import asyncio

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from serving.core.response_flow import ResponseFlow
from tests.serving.gate import until
from tests.serving.in_process import core
from tests.serving.requests import in_flight
from tests.serving.streaming_backend import streaming_model
from tests.support import model_factory
from tests.support.pipelines import ensemble, step
from tests.support.serving_process import PATIENCE_S

pytestmark = [pytest.mark.asyncio, pytest.mark.long]
# Counts to N in as many responses; a negative N fails in place of the last one.
COUNT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                count = int(request.inputs()[0].as_numpy()[0, 0])
                sender = request.get_response_sender()
                for number in range(abs(count)):
                    out = pb_utils.Tensor("OUT", np.array([[number + 1]], np.float32))
                    sender.send(pb_utils.InferenceResponse([out]))
                if count < 0:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("below zero")))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
DECOUPLED = "model_transaction_policy { decoupled: true } instance_group { count: 2 }"


def count(repository, name="count"):
    tensors = model_factory.tensors_text("input", [("N", "FP32", [1])])
    tensors += model_factory.tensors_text("output", [("OUT", "FP32", [1])])
    model_factory.python_model(repository, name, COUNT, f'backend: "python" max_batch_size: 8 {tensors} {DECOUPLED}')


COUNTED = step("count", {"N": "X"}, {"OUT": "n"})


async def ask(server, value, model="pipeline"):
    """The values of the responses, and the error at the end or None."""
    end, values = asyncio.get_running_loop().create_future(), []

    def on_response(answer, final):
        if answer is not None and not isinstance(answer, ServingError):
            values.append(answer.outputs["Y"].item())
        if final:
            end.set_result(answer if isinstance(answer, ServingError) else None)

    server.infer(in_flight(model, {"X": np.full((1, 1), value, np.float32)}, on_response))
    return values, await asyncio.wait_for(end, PATIENCE_S)


async def test_the_steps_after_a_decoupled_step_run_for_each_of_its_responses_in_order(tmp_path):
    count(tmp_path)
    model_factory.onnx_scale(tmp_path, "double", 2.0, extra="instance_group { count: 3 }")
    model_factory.onnx_add_sub(tmp_path, "sum", dims=[1])
    steps = (
        COUNTED
        + step("double", {"INPUT0": "n"}, {"OUTPUT0": "twice"})
        + step("sum", {"INPUT0": "n", "INPUT1": "twice"}, {"OUTPUT0": "Y"})
    )
    ensemble(tmp_path, steps)
    async with core(tmp_path, load_model=("pipeline",)) as server:
        assert server.model_config("pipeline").model_transaction_policy.decoupled
        answers = await asyncio.gather(*(ask(server, value) for value in (5, 0, 1, 40)))
        for values, (found, error) in zip((5, 0, 1, 40), answers, strict=True):
            assert (found, error) == ([3 * number for number in range(1, values + 1)], None)
        (row,) = server.model_statistics("pipeline").model_stats
        assert (row.inference_stats.success.count, row.inference_stats.fail.count) == (4, 0)
        assert row.response_stats["0"].success.count == 3


async def test_the_steps_before_it_run_once_and_decoupled_steps_may_follow_each_other(tmp_path):
    count(tmp_path)
    model_factory.onnx_scale(tmp_path, "double", 2.0)
    steps = (
        step("double", {"INPUT0": "X"}, {"OUTPUT0": "m"})
        + step("count", {"N": "m"}, {"OUT": "n"})
        + step("count", {"N": "n"}, {"OUT": "Y"})
    )
    ensemble(tmp_path, steps)
    ensemble(tmp_path, step("pipeline", {"X": "X"}, {"Y": "Y"}), "outer")
    async with core(tmp_path, load_model=("outer",)) as server:
        for model in ("pipeline", "outer"):
            assert await ask(server, 2, model) == ([1, 1, 2, 1, 2, 3, 1, 2, 3, 4], None)
        (row,) = server.model_statistics("double").model_stats
        assert row.inference_count == 2


async def test_an_error_of_a_decoupled_step_ends_the_request_and_names_it(tmp_path):
    count(tmp_path)
    model_factory.onnx_scale(tmp_path, "double", 2.0)
    ensemble(tmp_path, COUNTED + step("double", {"INPUT0": "n"}, {"OUTPUT0": "Y"}))
    async with core(tmp_path, load_model=("pipeline",)) as server:
        _, error = await ask(server, -3)
        assert str(error) == "in ensemble 'pipeline', step 'count': below zero"
        assert await ask(server, 2) == ([2, 4], None)
        (row,) = [row for row in server.statistics() if row.model_name == "pipeline"]
        assert row.status.in_flight == 0


async def test_back_pressure_holds_for_the_steps_behind_it(tmp_path):
    count(tmp_path)
    model_factory.onnx_slow(tmp_path, iterations=5, extra="instance_group { count: 2 }")
    ensemble(tmp_path, "max_inflight_requests: 1 " + COUNTED + step("slow", {"INPUT0": "n"}, {"OUTPUT0": "Y"}))
    most = 0
    async with core(tmp_path, load_model=("pipeline",)) as server:
        asked = asyncio.gather(*(ask(server, 10) for _ in range(3)))
        while not asked.done():
            most = max(most, *(row.status.in_flight for row in server.statistics() if row.model_name == "slow"))
            await asyncio.sleep(0)
        assert asked.result() == [([*range(1, 11)], None)] * 3
    assert most == 1


async def test_the_bytes_that_a_client_takes_count_for_the_decoupled_step_that_sent_them(tmp_path):
    """So that it can wait for a slow client, also where its responses lead to no answer themselves."""
    count(tmp_path)
    model_factory.onnx_scale(tmp_path, "double", 2.0)
    steps = step("count", {"N": "X"}, {"OUT": "m"}) + step("count", {"N": "m"}, {"OUT": "n"})
    ensemble(tmp_path, steps + step("double", {"INPUT0": "n"}, {"OUTPUT0": "Y"}))
    flow = ResponseFlow(max_wait_s=1e6)
    answers: asyncio.Queue = asyncio.Queue()
    async with core(tmp_path, load_model=("pipeline",)) as server:
        request = in_flight(
            "pipeline", {"X": np.full((1, 1), 40, np.float32)}, lambda *answer: answers.put_nowait(answer), flow=flow
        )
        server.infer(request)
        expected = [2 * number for most in range(1, 41) for number in range(1, most + 1)]
        for value in expected:
            answer, final = await asyncio.wait_for(answers.get(), PATIENCE_S)
            assert answer.outputs["Y"].item() == value
            flow.note_taken(answer.size)
        if not final:  # the first step told the end after everything behind it was done
            assert await asyncio.wait_for(answers.get(), PATIENCE_S) == (None, True)
        assert flow._ahead == 0, "every response of a step was counted, and let go once"


async def test_cancelling_stops_the_step_and_all_that_follows(tmp_path):
    count(tmp_path)
    model_factory.onnx_slow(tmp_path, iterations=20)
    ensemble(tmp_path, COUNTED + step("slow", {"INPUT0": "n"}, {"OUTPUT0": "Y"}))
    async with core(tmp_path, load_model=("pipeline",)) as server:
        answers = []
        request = in_flight(
            "pipeline", {"X": np.full((1, 1), 500, np.float32)}, lambda answer, final: answers.append((answer, final))
        )
        server.infer(request)
        await until(lambda: answers, "the first response")
        request.cancel()
        assert (answers[-1][0].code, answers[-1][1]) == (Code.CANCELLED, True)
        await until(lambda: not any(row.status.in_flight for row in server.statistics()), "an idle server")


TWICE = step("count", {"N": "X"}, {"OUT": "n"}) + step("count", {"N": "X"}, {"OUT": "k"})


@pytest.mark.parametrize(
    ("steps", "outputs", "reason"),
    [
        (
            TWICE + step("sum", {"INPUT0": "n", "INPUT1": "k"}, {"OUTPUT0": "Y"}),
            '{name: "Y" data_type: TYPE_FP32 dims: [1]}',
            "step 'sum' receives inputs originated from different decoupled models",
        ),
        (
            TWICE,
            '{name: "n" data_type: TYPE_FP32 dims: [1]}, {name: "k" data_type: TYPE_FP32 dims: [1]}',
            "its outputs originate from different decoupled models",
        ),
        (
            COUNTED + step("sum", {"INPUT0": "n", "INPUT1": "X"}, {"OUTPUT0": "Y"}),
            '{name: "Y" data_type: TYPE_FP32 dims: [1]}',
            "step 'sum' receives inputs originated from different decoupled models",
        ),
        (
            COUNTED + step("double", {"INPUT0": "X"}, {"OUTPUT0": "Y"}),
            '{name: "Y" data_type: TYPE_FP32 dims: [1]}, {name: "n" data_type: TYPE_FP32 dims: [1]}',
            "its outputs originate from different decoupled models",
        ),
    ],
    ids=["a step of one model twice", "outputs of one model twice", "a step", "the outputs"],
)
async def test_tensors_that_come_a_different_number_of_times_do_not_meet(tmp_path, steps, outputs, reason):
    count(tmp_path)
    model_factory.onnx_scale(tmp_path, "double", 2.0)
    model_factory.onnx_add_sub(tmp_path, "sum", dims=[1])
    ensemble(tmp_path, steps, outputs=outputs)
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match=reason):
            await server.load_model("pipeline")


async def test_the_last_response_is_final_where_it_is_known_to_be_the_last(tmp_path):
    """The step tells the end with its last response, or alone, behind it."""
    streaming_model(tmp_path)
    tensor = '{name: "%s" data_type: TYPE_%s dims: [%d]}'
    steps = step("streaming", {"IN": "X"}, {"OUT": "Y"})
    ensemble(tmp_path, steps, "pipeline", tensor % ("X", "INT32", 1), tensor % ("Y", "UINT8", -1), max_batch_size=0)
    ensemble(
        tmp_path,
        step("pipeline", {"X": "X"}, {"Y": "Y"}),
        "outer",
        tensor % ("X", "INT32", 1),
        tensor % ("Y", "UINT8", -1),
        0,
    )
    async with core(tmp_path, load_model=("outer",)) as server:
        for model in ("pipeline", "outer"):
            for parameters, expected in (
                ({}, [([0], False), ([1], True)]),
                ({"end": "alone"}, [([0], False), ([1], False), (None, True)]),
            ):
                answers: list = []

                def take(answer, final, answers=answers):
                    answers.append((None if answer is None else answer.outputs["Y"].tolist(), final))

                inputs = {"X": np.array([2], np.int32)}
                server.infer(in_flight(model, inputs, take, parameters=parameters))
                await until(lambda answers=answers: answers and answers[-1][1], "the end")
                assert answers == expected
        (row,) = server.model_statistics("outer").model_stats
        assert (row.inference_stats.success.count, row.response_stats["1"].success.count) == (2, 2)


async def test_responses_of_an_ensemble_with_a_decoupled_step_cannot_be_cached(tmp_path):
    count(tmp_path)
    folder = ensemble(tmp_path, step("count", {"N": "X"}, {"OUT": "Y"}))
    with (folder / "config.pbtxt").open("a") as file:
        file.write("response_cache { enable: true }")
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match="a step of it is decoupled") as caught:
            await server.load_model("pipeline")
        assert caught.value.code is Code.INVALID_ARG

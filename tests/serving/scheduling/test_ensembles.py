"""Ensembles: tensors by reference, any DAG, failures that name their step, wrong pipelines refused with the reason."""

import asyncio
import json

import numpy as np
import pytest

from serving.core.errors import Code, ServingError
from tests.serving.gate import until
from tests.serving.in_process import core, index, infer, response
from tests.support import model_factory
from tests.support.pipelines import WRONG, chain, ensemble, step, wrong_pipeline

pytestmark = [pytest.mark.asyncio, pytest.mark.long]


X = {"X": np.array([[1.0], [2.0]], np.float32)}


async def test_loading_an_ensemble_loads_its_steps_and_runs_them_in_order(tmp_path):
    ensemble(tmp_path, chain(tmp_path))
    async with core(tmp_path, load_model=("pipeline",)) as server:
        assert (await infer(server, "pipeline", X))["Y"].tolist() == [[6.0], [12.0]]
        assert {name for name, _ in index(server)} == {"pipeline", "double", "triple"}
        statistics = {row.name: row for row in server.model_statistics().model_stats}
        assert statistics["pipeline"].inference_stats.success.count == 1
        assert statistics["triple"].inference_count == 2


async def test_branches_meet_again_and_an_ensemble_may_contain_another(tmp_path):
    steps = chain(tmp_path)
    ensemble(tmp_path, steps, name="inner")
    model_factory.onnx_add_sub(tmp_path, "sum", dims=[1])
    outer = (
        step("inner", {"X": "X"}, {"Y": "six"})
        + step("double", {"INPUT0": "X"}, {"OUTPUT0": "two"})
        + step("sum", {"INPUT0": "six", "INPUT1": "two"}, {"OUTPUT0": "Y"})
    )
    ensemble(tmp_path, outer)
    async with core(tmp_path, load_model=("*",)) as server:
        assert (await infer(server, "pipeline", X))["Y"].tolist() == [[8.0], [16.0]]


async def test_an_input_may_be_an_output_of_the_ensemble_and_outputs_can_be_chosen(tmp_path):
    steps = chain(tmp_path)
    both = '{name: "m" data_type: TYPE_FP32 dims: [1]}, {name: "Y" data_type: TYPE_FP32 dims: [1]}'
    ensemble(tmp_path, steps, outputs=both)
    async with core(tmp_path, load_model=("pipeline",)) as server:
        assert set(await infer(server, "pipeline", X)) == {"m", "Y"}
        assert set(await infer(server, "pipeline", X, requested=("m",))) == {"m"}


async def test_steps_whose_outputs_nobody_asked_for_do_not_run(tmp_path):
    """As in Triton; a tensor that is an output and read by a step keeps its step, where Triton 2.51 loses it."""
    for name, factor in (("double", 2.0), ("triple", 3.0), ("tenfold", 10.0)):
        model_factory.onnx_scale(tmp_path, name, factor)
    steps = (
        step("double", {"INPUT0": "X"}, {"OUTPUT0": "m"})
        + step("triple", {"INPUT0": "m"}, {"OUTPUT0": "Y"})
        + step("tenfold", {"INPUT0": "m"}, {"OUTPUT0": "Z"})
    )
    outputs = ", ".join(f'{{name: "{name}" data_type: TYPE_FP32 dims: [1]}}' for name in ("m", "Y", "Z"))
    ensemble(tmp_path, steps, outputs=outputs)
    async with core(tmp_path, load_model=("pipeline",)) as server:

        def runs():
            return [
                server.model_statistics(name).model_stats[0].execution_count for name in ("double", "triple", "tenfold")
            ]

        assert (await infer(server, "pipeline", X, requested=("Z",)))["Z"].tolist() == [[20.0], [40.0]]
        assert runs() == [1, 0, 1]
        assert set(await infer(server, "pipeline", X, requested=("m",))) == {"m"}
        assert runs() == [2, 0, 1]
        assert set(await infer(server, "pipeline", X)) == {"m", "Y", "Z"}
        assert runs() == [3, 1, 2]


async def test_a_response_tells_the_sequence_that_it_belongs_to(tmp_path):
    ensemble(tmp_path, chain(tmp_path))
    ensemble(tmp_path, step("pipeline", {"X": "X"}, {"Y": "Y"}), "outer")
    async with core(tmp_path, load_model=("*",)) as server:
        for model in ("pipeline", "outer"):
            for given in (
                {"sequence_id": 0, "sequence_start": False, "sequence_end": False},
                {"sequence_id": 7, "sequence_start": True, "sequence_end": False},
                {"sequence_id": "seven", "sequence_start": False, "sequence_end": True},
            ):
                assert (await response(server, model, X, **given)).parameters == given


async def test_a_step_may_change_the_sequence_of_those_behind_it(tmp_path):
    """By response parameters, as in Triton: the flags that it does not give are false then."""
    source = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                seen = [f"{r.correlation_id()} {r.flags()}".encode() for r in requests]
                return [
                    pb_utils.InferenceResponse(
                        [pb_utils.Tensor("OUT", np.array([[text]], object))], parameters=PARAMETERS
                    )
                    for text in seen
                ]
    """
    config = """backend: "python" max_batch_size: 8 input { name: "IN" data_type: TYPE_STRING dims: 1 }
        output { name: "OUT" data_type: TYPE_STRING dims: 1 }"""
    for name, parameters in (
        ("changes", '{"sequence_id": 9, "sequence_end": True}'),
        ("tells", "None"),
        ("wrong", '{"sequence_end": 1}'),
    ):
        model_factory.python_model(tmp_path, name, source.replace("PARAMETERS", parameters), config)
    tensor = '{name: "%s" data_type: TYPE_STRING dims: [1]}'
    for name in ("changes", "wrong"):
        steps = step(name, {"IN": "X"}, {"OUT": "first"}) + step("tells", {"IN": "first"}, {"OUT": "second"})
        ensemble(tmp_path, steps, f"{name}_it", tensor % "X", f"{tensor % 'first'}, {tensor % 'second'}")
    inputs = {"X": np.array([[b"x"]], object)}
    async with core(tmp_path, load_model=("*",)) as server:
        answer = await response(server, "changes_it", inputs, sequence_id=7, sequence_start=True)
        assert {name: array.item() for name, array in answer.outputs.items()} == {"first": b"7 1", "second": b"9 2"}
        assert answer.parameters == {"sequence_id": 9, "sequence_start": False, "sequence_end": True}
        with pytest.raises(ServingError, match="step 'wrong': its response has wrong parameters"):
            await infer(server, "wrong_it", inputs)


async def test_models_that_batch_and_models_that_do_not_are_joined_as_triton_does(tmp_path):
    """A batch dimension of 1 comes and goes; a model without batches may also take the whole batch as one tensor."""
    tensor = '{name: "%s" data_type: TYPE_FP32 dims: %s}'
    model_factory.onnx_identity(tmp_path, "whole", dims=[-1, 4], max_batch_size=0)
    model_factory.onnx_identity(tmp_path, "row", dims=[4], max_batch_size=0)
    model_factory.onnx_identity(tmp_path, "rows", dims=[4], max_batch_size=8)
    for name, order, rows, dims in (
        ("batch", ("whole", "rows"), 8, "[4]"),
        ("one", ("row", "rows"), 8, "[4]"),
        ("plain", ("rows", "row"), 0, "[4]"),
        ("matrix", ("rows", "whole"), 0, "[-1, 4]"),
    ):
        first, second = order
        steps = step(first, {"INPUT0": "X"}, {"OUTPUT0": "m"}) + step(second, {"INPUT0": "m"}, {"OUTPUT0": "Y"})
        ensemble(tmp_path, steps, name, tensor % ("X", dims), tensor % ("Y", dims), max_batch_size=rows)
    async with core(tmp_path, load_model=("*",)) as server:
        for name, shape in (("batch", (3, 4)), ("one", (1, 4)), ("plain", (4,)), ("matrix", (3, 4))):
            array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            answer = (await infer(server, name, {"X": array}))["Y"]
            assert (answer.shape, answer.tolist()) == (shape, array.tolist())
        with pytest.raises(ServingError, match=r"in ensemble 'one', step 'row'.*shape") as caught:
            await infer(server, "one", {"X": np.zeros((2, 4), np.float32)})
        assert caught.value.code is Code.INVALID_ARG


async def test_the_failure_of_a_step_names_it(tmp_path):
    ensemble(tmp_path, chain(tmp_path))
    async with core(tmp_path, load_model=("pipeline",)) as server:
        await server.unload_model("triple")
        with pytest.raises(ServingError, match="in ensemble 'pipeline', step 'triple'") as caught:
            await infer(server, "pipeline", X)
        assert caught.value.code is Code.UNAVAILABLE
        assert server.model_statistics("pipeline").model_stats[0].inference_stats.fail.count == 1


async def test_a_step_is_tried_again_alone_and_each_try_has_its_time(tmp_path):
    """Its place at the step is kept meanwhile, and free afterwards."""
    source = """
        import time
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.seen = 0

            def execute(self, requests):
                self.seen += 1
                factor = pb_utils.get_input_tensor_by_name(requests[0], "INPUT0").as_numpy().flat[0]
                if factor < 0 and self.seen % 3:
                    raise ValueError("not yet")
                if factor == 0:
                    time.sleep(0.3)
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.full((1, 1), self.seen, np.float32))])]
    """
    config = """backend: "python" max_batch_size: 1 input { name: "INPUT0" data_type: TYPE_FP32 dims: 1 }
        output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }"""
    model_factory.python_model(tmp_path, "thrice", source, config)
    model_factory.onnx_scale(tmp_path, "double", 2.0)
    steps = step("double", {"INPUT0": "X"}, {"OUTPUT0": "m"}) + step("thrice", {"INPUT0": "m"}, {"OUTPUT0": "Y"})
    for name, said in (("pipeline", '{"retries": 2}'), ("late", '{"timeout_ms": 100}')):
        folder = ensemble(tmp_path, f"{steps} max_inflight_requests: 1", name, max_batch_size=1)
        value = json.dumps(f'{{"thrice": {said}}}')
        with (folder / "config.pbtxt").open("a") as file:
            file.write(f'parameters {{ key: "slipway.step_retries" value {{ string_value: {value} }} }}')
    one, slow = ({"X": np.array([[value]], np.float32)} for value in (-1, 0))
    async with core(tmp_path, load_model=("*",)) as server:
        assert (await infer(server, "pipeline", one))["Y"].item() == 3
        assert server.model_statistics("double").model_stats[0].execution_count == 1
        for _ in range(2):
            with pytest.raises(ServingError, match="step 'thrice': it has not answered within 100 ms"):
                await infer(server, "late", slow)
        assert (await infer(server, "pipeline", one))["Y"].item() == 6


async def test_unload_dependents_takes_the_steps_along(tmp_path):
    ensemble(tmp_path, chain(tmp_path))
    async with core(tmp_path, load_model=("pipeline",)) as server:
        await server.unload_model("pipeline", unload_dependents=True)
        await until(lambda: all(state == "UNAVAILABLE" for state, _ in index(server).values()))


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.replace(" ", "_"))
async def test_a_wrong_pipeline_is_refused_with_the_reason(tmp_path, case):
    reason = wrong_pipeline(tmp_path, case)
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match=reason):
            await server.load_model("wrong")
        assert not server.model_ready("wrong")


async def test_an_ensemble_without_a_version_folder_is_refused(tmp_path):
    ensemble(tmp_path, chain(tmp_path))
    (tmp_path / "pipeline" / "1").rmdir()
    async with core(tmp_path) as server:
        with pytest.raises(ServingError, match="at least one version must be available"):
            await server.load_model("pipeline")


async def test_no_more_requests_than_allowed_are_at_a_step_and_the_others_follow(tmp_path):
    model_factory.onnx_scale(tmp_path, "double", 2.0)
    model_factory.onnx_slow(tmp_path, iterations=20, extra="instance_group [ { count: 1 } ]")
    steps = step("double", {"INPUT0": "X"}, {"OUTPUT0": "m"}) + step("slow", {"INPUT0": "m"}, {"OUTPUT0": "Y"})
    ensemble(tmp_path, "max_inflight_requests: 2 " + steps)
    most = 0
    async with core(tmp_path, load_model=("pipeline",)) as server:
        inputs = [{"X": np.array([[float(number)]], np.float32)} for number in range(12)]
        requests = asyncio.gather(*(infer(server, "pipeline", one) for one in inputs))
        while not requests.done():
            at_once = [row.status.in_flight for row in server.statistics() if row.model_name in ("slow", "double")]
            most = max(most, *at_once)
            await asyncio.sleep(0)
        assert [answer["Y"].item() for answer in requests.result()] == [2.0 * number for number in range(12)]
    assert most == 2


async def test_failures_leave_room_at_their_step(tmp_path):
    steps = chain(tmp_path)
    ensemble(tmp_path, "max_inflight_requests: 1 " + steps)
    async with core(tmp_path, load_model=("pipeline",)) as server:
        await server.unload_model("triple")
        answers = await asyncio.gather(*(infer(server, "pipeline", X) for _ in range(1200)), return_exceptions=True)
        assert {str(answer)[:37] for answer in answers} == {"in ensemble 'pipeline', step 'triple':"[:37]}
        await server.load_model("triple")
        assert (await infer(server, "pipeline", X))["Y"].tolist() == [[6.0], [12.0]]

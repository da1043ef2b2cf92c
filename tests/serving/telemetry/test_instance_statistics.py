"""The counters of each instance of a version that has several; together they are those of the version."""

import asyncio

import numpy as np
import pytest

from serving.telemetry.statistics import MOST_INSTANCES, OTHER_INSTANCES, ModelStatistics
from tests.serving.in_process import core, infer
from tests.support import model_factory

ONE = {"INPUT0": np.ones((1, 1), np.float32)}


@pytest.mark.asyncio
async def test_the_instances_of_a_version_count_their_own_requests_and_failures(tmp_path):
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
                return [self.answer(array) for array in inputs]

            def answer(self, array):
                if array[0, 0] < 0:
                    return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)])
    """
    tensors = model_factory.tensors_text("input", [("INPUT0", "FP32", [1])])
    tensors += model_factory.tensors_text("output", [("OUTPUT0", "FP32", [1])])
    text = f'name: "two" backend: "python" max_batch_size: 1 {tensors} instance_group {{ count: %d kind: KIND_CPU }}'
    model_factory.python_model(tmp_path, "two", source, text % 2)
    async with core(tmp_path) as server:
        await server.load_model("two")
        await asyncio.gather(*(infer(server, "two", ONE) for _ in range(40)))
        negative = {"INPUT0": np.full((1, 1), -1, np.float32)}
        await asyncio.gather(*(infer(server, "two", negative) for _ in range(4)), return_exceptions=True)
        [statistics] = server.statistics()
        assert list(statistics.instances) == ["two_0_0", "two_0_1"]
        each = statistics.instances.values()
        assert all(one.success for one in each)
        assert sum(one.success for one in each) == statistics.success.count == 40
        assert sum(one.fail for one in each) == statistics.fail.count == 4
        assert sum(one.execution_count for one in each) == statistics.execution_count
        assert sum(one.request_latency.total for one in each) == 40
        model_factory.write_config(tmp_path / "two", text % 1)
        await server.load_model("two")
        assert not statistics.instances


def test_of_many_instances_the_last_ones_count_together():
    statistics = ModelStatistics("m", 1)
    statistics.split([f"m_{number}" for number in range(100)])
    assert [*statistics.instances][-2:] == [f"m_{MOST_INSTANCES - 2}", OTHER_INSTANCES]
    first = statistics.instances["m_0"]
    statistics.split(["m_0", "m_1"])
    assert (list(statistics.instances), statistics.instances["m_0"] is first) == (["m_0", "m_1"], True)

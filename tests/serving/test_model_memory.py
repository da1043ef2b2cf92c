"""What each model holds: measured when it loads, read from its processes, told in statistics, metrics and the live feed."""

import asyncio

import numpy as np
import pytest

from serving.frontends.hardware import Hardware
from serving.frontends.live_feed import describe_model
from serving.frontends.prometheus import render
from serving.memory import FILES, MEASURED, MemoryMeter, memory_use
from tests import model_factory
from tests.serving.in_process import core, infer

pytestmark = pytest.mark.asyncio
MB = 1 << 20
LARGE = (1024, 4096, 1024)  # 32 MB of weights


async def test_a_model_that_loads_alone_is_measured_and_told_everywhere(tmp_path):
    model_factory.onnx_scale(tmp_path, "first")  # so that the library itself is not counted
    model_factory.onnx_mlp(tmp_path, "large", LARGE)
    async with core(tmp_path) as server:
        await server.load_model("first")
        await server.load_model("large")
        [told] = server.model_statistics("large").model_stats
        [usage] = told.memory_usage
        assert (usage.type, usage.id) == ("CPU", 0)
        assert 32 * MB <= usage.byte_size < 160 * MB
        statistics = of(server, "large")
        assert describe_model(statistics, "READY")["memory"]["host_bytes"] == usage.byte_size
        line = (
            f'slipway_model_memory_bytes{{model="large",version="1",device="cpu",basis="measured"}} {usage.byte_size}\n'
        )
        assert line in "".join(render([statistics], Hardware()))
        await server.unload_model("large")
        await until_freed(server, "large")
        assert not server.model_statistics().model_stats[1].memory_usage


async def test_a_python_model_holds_what_its_process_holds_now(tmp_path):
    source = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []

            def execute(self, requests):
                self.kept.append(np.ones(8 << 20, np.float32))
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.ones((1, 1), np.float32))])] * len(requests)
    """
    tensors = model_factory.tensors_text("input", [("INPUT0", "FP32", [1])])
    tensors += model_factory.tensors_text("output", [("OUTPUT0", "FP32", [1])])
    model_factory.python_model(
        tmp_path, "grows", source, f'name: "grows" backend: "python" max_batch_size: 1 {tensors}'
    )
    async with core(tmp_path) as server:
        await server.load_model("grows")
        before = of(server, "grows").memory
        await infer(server, "grows", {"INPUT0": np.ones((1, 1), np.float32)})
        after = of(server, "grows").memory
        assert before.basis == after.basis == MEASURED
        assert before.host > 5 * MB
        assert after.host - before.host >= 32 * MB


async def test_loads_that_overlap_count_the_size_of_their_files():
    meter = MemoryMeter()
    with meter.measure() as first, meter.measure() as second:
        pass
    with meter.measure() as third:
        pass
    assert (first.alone, second.alone, third.alone) == (False, False, True)
    assert memory_use(first, 1000, (), ()) == (1000, (), FILES)


def of(server, name):
    [found] = [statistics for statistics in server.statistics() if statistics.model_name == name]
    return found


async def until_freed(server, name):
    async with asyncio.timeout(10):
        while of(server, name).memory.host:
            await asyncio.sleep(0.01)

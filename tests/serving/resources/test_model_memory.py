"""What each model holds: measured when it loads, read from its processes, told in statistics, metrics and the live feed."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from serving.resources.allocator import MemoryReturn
from serving.resources.memory import FILES, MEASURED, MemoryMeter, memory_use
from tests.serving.frontends.metrics.live_subscriber import Subscriber
from tests.serving.frontends.raw_http import samples
from tests.serving.in_process import core, infer
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until

MB = 1 << 20
LARGE = (1024, 4096, 1024)  # 32 MB of weights


def test_a_model_that_loads_alone_is_measured_and_told_everywhere(tmp_path):
    """In a process of its own: one that has run other tests has freed memory, which a load may use instead of new."""
    model_factory.onnx_scale(tmp_path, "first")  # so that the library itself is not counted
    model_factory.onnx_mlp(tmp_path, "large", LARGE)
    with ServerProcess(tmp_path, "--model-control-mode=explicit", "--load-model=first") as server:

        def told() -> list[Any]:
            rows = server.get("/v2/models/stats")[1]["model_stats"]
            return next((row.get("memory_usage", []) for row in rows if row["name"] == "large"), [])

        assert server.post("/v2/repository/models/large/load")[0] == 200
        [usage] = told()
        assert (usage["type"], int(usage["id"])) == ("CPU", 0)
        assert 32 * MB <= int(usage["byte_size"]) < 160 * MB
        line = 'slipway_model_memory_bytes{model="large",version="1",device="cpu",basis="measured"}'
        assert samples(server)[line] == int(usage["byte_size"])
        with closing(Subscriber(server.metrics)) as subscriber:
            [large] = [model for model in subscriber.changes() if model["name"] == "large"]
        assert large["memory"]["host_bytes"] == int(usage["byte_size"])
        assert server.post("/v2/repository/models/large/unload")[0] == 200
        wait_until(lambda: not told(), what="the memory's end")


@pytest.mark.asyncio
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
        before = of(server, "grows").status.memory
        await infer(server, "grows", {"INPUT0": np.ones((1, 1), np.float32)})
        await server.refresh_memory()
        after = of(server, "grows").status.memory
        assert before.basis == after.basis == MEASURED
        assert before.host > 5 * MB
        assert after.host - before.host >= 32 * MB


def test_loads_that_overlap_count_the_size_of_their_files():
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


class CountingExecutor(ThreadPoolExecutor):
    runs = 0

    def submit(self, *arguments: Any, **named: Any) -> Any:
        self.runs += 1
        return super().submit(*arguments, **named)


def test_memory_is_given_back_once_for_all_models_that_are_freed_at_a_time():
    """A thousand models that went together took half a minute: each looked through the objects of all others."""

    async def runs(executor: CountingExecutor) -> list[int]:
        memory_return = MemoryReturn()
        await asyncio.gather(*(memory_return.after_free(executor) for _ in range(1000)))
        together = executor.runs
        await memory_return.after_free(executor)
        return [together, executor.runs]

    with CountingExecutor(1) as executor:
        assert asyncio.run(runs(executor)) == [2, 3]  # for the first, for whoever came while it ran; for a later one

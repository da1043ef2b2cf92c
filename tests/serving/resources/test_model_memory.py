"""The memory of each model, in statistics, metrics and the live feed: its files, or the memory of its processes."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from serving.core.devices import CPU, Device
from serving.resources.allocator import MemoryReturn
from serving.resources.memory import (
    FILES,
    GROWTH,
    MEASURED,
    NOTHING,
    Growth,
    MemoryMeter,
    MemoryUse,
    files_bytes,
    larger_use,
    memory_growth,
    weights_use,
)
from tests.serving.frontends.metrics.live_subscriber import Subscriber
from tests.serving.frontends.raw_http import samples
from tests.serving.in_process import core, infer
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until

MB = 1 << 20
LARGE = (1024, 4096, 1024)  # 32 MB of weights


def reported(server: ServerProcess) -> dict[str, int]:
    """Bytes on the host by model, as the statistics extension tells them."""
    rows = server.get("/v2/models/stats")[1]["model_stats"]
    return {row["name"]: sum(int(usage["byte_size"]) for usage in row["memory_usage"]) for row in rows}


def test_the_memory_of_a_model_is_the_same_after_a_reload_and_a_restart_beside_any_others(tmp_path):
    """It once was what the server grew by: 68 MB where the model was loaded first, 32 MB after a restart."""
    model_factory.onnx_scale(tmp_path, "first")
    model_factory.onnx_mlp(tmp_path, "large", LARGE)
    size = files_bytes(tmp_path / "large/1")
    assert 32 * MB <= size < 40 * MB
    with ServerProcess(tmp_path, "--model-control-mode=explicit") as server:
        assert server.post("/v2/repository/models/large/load")[0] == 200
        assert reported(server) == {"large": size}
        line = 'slipway_model_memory_bytes{model="large",version="1",device="cpu",basis="files"}'
        assert samples(server)[line] == size
        with closing(Subscriber(server.metrics)) as subscriber:
            [large] = [model for model in subscriber.changes() if model["name"] == "large"]
        assert large["memory"] == {"host_bytes": size, "gpu_bytes": {}, "basis": "files"}
        assert server.post("/v2/repository/models/large/unload")[0] == 200
        wait_until(lambda: not reported(server), what="the memory's end")
        assert server.post("/v2/repository/models/large/load")[0] == 200
        assert reported(server) == {"large": size}
    with ServerProcess(tmp_path, "--model-control-mode=explicit", "--load-model=*") as server:
        assert reported(server)["large"] == size


@pytest.mark.asyncio
async def test_a_release_that_is_taken_in_place_does_not_change_the_memory_of_a_model(tmp_path):
    model_factory.onnx_scale(tmp_path)
    async with core(tmp_path, load_model=("scale",)) as server:
        before = of(server, "scale").status.memory
        for count in (3, 1):
            model_factory.write_config(tmp_path / "scale", f"instance_group {{ count: {count} kind: KIND_CPU }}")
            await server.load_model("scale")
        assert of(server, "scale").status.memory == before


@pytest.mark.asyncio
async def test_the_memory_of_a_python_model_is_that_of_its_process(tmp_path):
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


def test_weights_count_once_on_each_device():
    gpu, other = Device("gpu", 0), Device("gpu", 1)
    assert weights_use(10, [CPU, CPU]) == (10, (), FILES)
    assert weights_use(10, [gpu, gpu, other]) == (0, ((0, 10), (1, 10)), FILES)
    assert weights_use(10, [CPU, other]) == (10, ((1, 10),), FILES)
    assert weights_use(10, []) == (0, (), FILES)


def test_budgets_count_the_growth_of_a_load_that_ran_alone():
    meter = MemoryMeter()
    with meter.measure() as first, meter.measure() as second:
        pass
    with meter.measure() as third:
        pass
    assert (first.alone, second.alone, third.alone) == (False, False, True)
    first.weight, second.weight, first.together.host, first.together.weight = 1, 3, 80, 4
    assert (first.share(), second.share()) == ((20, (), GROWTH), (60, (), GROWTH))
    assert memory_growth(Growth(False, 50, {0: 5}), [0]) == NOTHING
    assert memory_growth(Growth(True, 50, {0: 5, 1: -3}), [0, 1]) == (50, ((0, 5), (1, 0)), MEASURED)
    assert larger_use(MemoryUse(10, ((0, 7),), FILES), MemoryUse(50, ((0, 5), (1, 1)))) == (50, ((0, 7), (1, 1)), FILES)


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

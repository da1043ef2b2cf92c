"""GET /v2/slipway/memory: the memory of each device, divided among the versions, so that the parts sum to what was measured."""

import multiprocessing
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx
import pynvml
import pytest

from serving.core.devices import Device
from serving.models.memory_map import memory_map
from serving.models.model import Model
from serving.models.model_version import ModelVersion, State
from serving.models.residency import ResidencyManager
from serving.resources import process_memory
from serving.resources.available_memory import Available
from serving.resources.memory import MemoryUse
from serving.resources.process_memory import DeviceMemory, Reading, own_bytes
from serving.telemetry.statistics import ModelStatistics
from tests.serving.models.test_residency import LARGE, MB, asking_for
from tests.support import model_factory
from tests.support.serving_process import ServerProcess, wait_until


def told(server: ServerProcess) -> tuple[dict[str, Any], dict[str, Any]]:
    """The host's figures, and each model's row by its name."""
    answer = httpx.get(f"http://{server.metrics}/v2/slipway/memory", timeout=60).raise_for_status().json()
    return answer["devices"][0], {row["name"]: row for row in answer["models"]}


def test_the_map_of_a_server_has_what_the_kernel_tells_of_its_processes(tmp_path):
    model_factory.python_scale(tmp_path, "scale", extra="instance_group { count: 2 kind: KIND_CPU }")
    model_factory.onnx_mlp(tmp_path, "large", LARGE, extra=asking_for("evictable"))
    with ServerProcess(tmp_path, "--model-control-mode=explicit", "--memory-budget=4294967296") as server:
        for name in ("large", "scale"):
            assert server.post(f"/v2/repository/models/{name}/load")[0] == 200

        def agrees() -> bool:
            """The processes may take or return memory between two readings, so the figures agree soon."""
            models = told(server)[1]
            parts = models["scale"]["parts"]
            kernel = sum(map(own_bytes, server.model_processes()))
            return len(parts) == 2 and abs(sum(part["bytes"] for part in parts) - kernel) < MB

        wait_until(agrees, what="the memory of the two processes")
        host, models = told(server)
        assert [part["basis"] for part in models["scale"]["parts"]] == ["measured"] * 2
        assert [part["instances"] for part in models["scale"]["parts"]] == [["scale_0_0"], ["scale_0_1"]]
        [large] = models["large"]["parts"]
        assert large["basis"] == "growth"  # it was loaded alone, and holds more than its files
        assert 32 * MB <= large["bytes"] < 120 * MB
        assert (models["scale"]["kept_by"], models["large"]["kept_by"]) == ("pinned", "")
        parts = [part for row in models.values() for part in row["parts"]]
        assert sum(part["bytes"] for part in parts) <= host["server"] <= host["total"] - host["available"]
        assert host["measured"]
        assert host["budget"] == 4 << 30
        assert host["budget_evictable"] >= 32 * MB

        assert server.post("/v2/repository/models/large/unload")[0] == 200
        wait_until(lambda: not told(server)[1]["large"]["parts"], what="the model's end")
        assert told(server)[1]["large"]["needs"]["host_bytes"] >= 32 * MB, "what its last load took"


def test_a_page_that_two_processes_share_counts_once():
    """Python's fork gives the child every page of the parent: RSS would count them twice."""
    kept = bytearray(64 * MB)
    ready, stop = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=lambda: (stop.send(1), stop.recv()))
    alone = own_bytes(multiprocessing.current_process().pid)
    child.start()
    try:
        ready.recv()
        together = own_bytes(multiprocessing.current_process().pid) + own_bytes(child.pid)
        assert together < alone + 32 * MB
    finally:
        ready.send(1)
        child.join()
    assert len(kept) == 64 * MB


def version_of(name: str, model: Model) -> Any:
    """A lifecycle with one version that serves a model. The models are doubles, because the machine has no GPU."""
    version = ModelVersion(ModelStatistics(name, 1), State.READY, model=model)
    lock = SimpleNamespace(locked=lambda: False)
    return SimpleNamespace(identifier=SimpleNamespace(name=name, namespace=""), lock=lock, versions={1: version})


def gpu_model(files: int, processes: list[int], grown: int = 0) -> Model:
    instance = Mock(device=Device("gpu", 0), processes=lambda: processes)
    instance.name = "one"
    model = Mock(spec=Model, instances=[instance], grown=MemoryUse(0, ((0, grown),)))
    model.memory = model.held = MemoryUse(0, ((0, files),), "files")
    return model


@pytest.mark.parametrize(
    ("processes", "server", "sizes"),
    [
        ({1: 600, 7: 300}, 900, [500, 300]),  # the driver names the processes
        ({1: 200, 7: 300}, 500, [200, 300]),  # the estimate of the server's process is cut to what it holds
        (None, 580, [500, 80]),  # a container hides them: the sum of the estimates
    ],
)
def test_the_parts_on_a_gpu_sum_to_at_most_what_was_measured(processes, server, sizes):
    lifecycles = [version_of("inside", gpu_model(500, [])), version_of("apart", gpu_model(0, [7], grown=80))]
    devices = {"gpu:0": DeviceMemory(Available(1000, "on GPU 0", 2000), processes)}
    answer = memory_map(lifecycles, ResidencyManager(), Reading(devices, {7: 1}))
    [gpu] = answer["devices"]
    assert (gpu["server"], gpu["measured"]) == (server, processes is not None)
    rows = [sum(part["bytes"] for part in row["parts"]) for row in answer["models"]]
    assert rows == sizes


def test_a_driver_that_names_no_process_of_this_container_leaves_its_processes_unknown(monkeypatch):
    running = [SimpleNamespace(pid=4242, usedGpuMemory=9), SimpleNamespace(pid=1, usedGpuMemory=None)]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda number: number)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: running)
    assert process_memory.gpu_processes(0, [1, 2]) is None
    assert process_memory.gpu_processes(0, [1, 4242]) == {4242: 9}

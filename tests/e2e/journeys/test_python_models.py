"""Python models on a real server: processes start, crash, change in number and end with their model."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.gated_model import GatedModel
from tests.support.model_factory import onnx_scale, python_model, python_scale, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, kill_and_wait, wait_until

pytestmark = pytest.mark.long
TENSORS = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
PROCESS = """parameters { key: "slipway.isolation" value { string_value: "\\"process\\"" } }"""
FRAGILE = """
    import ctypes
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            arrays = [request.inputs()[0].as_numpy() for request in requests]
            if any(array[0, 0] < 0 for array in arrays):
                ctypes.string_at(0)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in arrays]
"""


@pytest.fixture
def server(tmp_path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path, "--model-control-mode=explicit") as running:
        yield running


def load(server: ServerProcess, model: str) -> None:
    assert server.post(f"/v2/repository/models/{model}/load")[0] == 200


def infer(client, model: str, value: float) -> float:
    module = tritonclient.grpc if isinstance(client, tritonclient.grpc.InferenceServerClient) else tritonclient.http
    wire = module.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.full((1, 1), value, np.float32))
    return float(client.infer(model, [wire]).as_numpy("OUTPUT0")[0, 0])


def written(repository: Path, name: str, source: str, extra: str = "") -> None:
    python_model(repository, name, source, f'name: "{name}" backend: "python" max_batch_size: 4 {TENSORS} {extra}')


def test_a_segmentation_fault_fails_its_own_request_and_disturbs_nothing_else(server, tmp_path):
    written(tmp_path, "fragile", FRAGILE)
    onnx_scale(tmp_path, "steady", 2.0)
    python_scale(tmp_path, "python_steady", 3.0)
    for model in ("fragile", "steady", "python_steady"):
        load(server, model)
    stop, failures, answers = threading.Event(), [], []

    def keep_asking(model: str, factor: float) -> None:
        with tritonclient.http.InferenceServerClient(server.http) as client:
            while not stop.is_set():
                try:
                    answers.append(infer(client, model, 1.0) == factor)
                except InferenceServerException as error:
                    failures.append(error)

    threads = [threading.Thread(target=keep_asking, args=pair) for pair in (("steady", 2.0), ("python_steady", 3.0))]
    for thread in threads:
        thread.start()
    try:
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            for _ in range(3):
                with pytest.raises(
                    InferenceServerException, match="ended by signal SIGSEGV during this request"
                ) as error:
                    infer(client, "fragile", -1.0)
                assert error.value.status() == "StatusCode.INTERNAL"
                assert infer(client, "fragile", 5.0) == 5.0
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not failures
    assert answers
    assert all(answers)
    wait_until(lambda: "Segmentation fault" in server.log, what="where it happened, in the log")


def test_each_instance_is_a_process_and_their_number_follows_the_configuration(server, tmp_path):
    for count in (1, 3, 2):
        python_scale(tmp_path, "scale", extra=f"instance_group {{ count: {count} kind: KIND_CPU }}")
        load(server, "scale")
        wait_until(lambda wanted=count: len(server.model_processes()) == wanted, what=f"{count} processes")
        with tritonclient.http.InferenceServerClient(server.http) as client:
            assert infer(client, "scale", 2.0) == 4.0
    assert server.post("/v2/repository/models/scale/unload")[0] == 200
    wait_until(lambda: not server.model_processes(), what="the end of all processes")


@pytest.mark.parametrize("extra", ["", PROCESS])
def test_unloading_a_model_in_a_process_gives_its_memory_back(server, tmp_path, extra):
    """200 MB held by user code, or by a backend that runs apart, go with the process."""
    if extra:
        onnx_scale(tmp_path, "heavy", extra=extra + " instance_group { count: 1 kind: KIND_CPU }")
    else:
        source = FRAGILE.replace(
            "def execute",
            "def initialize(self, args):\n            self.big = bytearray(200 << 20)\n\n        def execute",
        )
        written(tmp_path, "heavy", source)
    with tritonclient.http.InferenceServerClient(server.http) as client:
        load(server, "heavy")
        infer(client, "heavy", 1.0)
        [child] = server.model_processes()
        assert resident(child) > (40 << 20)
        before = server.memory()
        for _ in range(3):
            assert server.post("/v2/repository/models/heavy/unload")[0] == 200
            wait_until(lambda: not server.model_processes(), what="the end of the process")
            load(server, "heavy")
            infer(client, "heavy", 1.0)
    assert server.memory() < before + (20 << 20)


def resident(pid: int) -> int:
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024


def test_a_backend_in_a_process_survives_a_kill(server, tmp_path):
    onnx_scale(tmp_path, "apart", 6.0, extra=PROCESS + " instance_group { count: 1 kind: KIND_CPU }")
    load(server, "apart")
    with tritonclient.http.InferenceServerClient(server.http) as client:
        assert infer(client, "apart", 1.0) == 6.0
        [child] = server.model_processes()
        kill_and_wait(child)
        assert infer(client, "apart", 1.0) == 6.0
        assert client.is_model_ready("apart")


def test_user_code_learns_that_its_client_has_gone(server, tmp_path):
    source = f"""
        import pathlib
        import time
        import triton_python_backend_utils as pb_utils

        FOLDER = pathlib.Path({str(tmp_path)!r})

        class TritonPythonModel:
            def execute(self, requests):
                (FOLDER / "began").touch()
                deadline = time.monotonic() + 60
                while not requests[0].is_cancelled():
                    assert time.monotonic() < deadline, "the client stayed"
                    time.sleep(0.01)
                (FOLDER / "noticed").touch()
                error = pb_utils.TritonError("too late", pb_utils.TritonError.CANCELLED)
                return [pb_utils.InferenceResponse(error=error) for _ in requests]
    """
    repository = tmp_path
    written(repository, "patient", source)
    load(server, "patient")
    wire = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.ones((1, 1), np.float32))
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        call = client.async_infer("patient", [wire], lambda result, error: None)
        wait_until((tmp_path / "began").exists, what="the execution")
        call.cancel()
        wait_until((tmp_path / "noticed").exists, what="the model's noticing")


def test_requests_are_batched_for_user_code(server, tmp_path):
    batching = "dynamic_batching { preferred_batch_size: [4] max_queue_delay_microseconds: 60000000 }"
    gated = GatedModel(tmp_path, tmp_path, max_batch_size=4, extra=batching)
    load(server, "gated")
    gated.open()
    wire = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.ones((1, 1), np.float32))
    outcomes = []
    with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
        for number in range(4):
            client.async_infer("gated", [wire], lambda result, error: outcomes.append(error), request_id=str(number))
        wait_until(lambda: len(outcomes) == 4, what="four answers")
        assert outcomes == [None] * 4
        statistics = client.get_inference_statistics("gated").model_stats[0]
    assert (statistics.inference_count, statistics.execution_count) == (4, 1)

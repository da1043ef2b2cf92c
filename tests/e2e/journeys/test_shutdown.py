"""SIGTERM and SIGINT: requests under way are finished, new ones refused, and no process is left behind."""

import http.client
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.e2e.gated_model import GatedModel
from tests.serving.frontends.http2.http2_peer import HEADERS, Peer, framed
from tests.support.model_factory import onnx_add_sub, onnx_scale, python_model, python_sleeper, tensors_text
from tests.support.serving_process import PATIENCE_S, ServerProcess, descendants, wait_until

MODULES = {"http": tritonclient.http, "grpc": tritonclient.grpc}


def ask(server: ServerProcess, protocol: str, model: str, request_id: str, value: float = 1.0) -> float:
    """One request with one stock client; its answer."""
    module = MODULES[protocol]
    wire = module.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.full((1, 1), value, np.float32))
    with module.InferenceServerClient(getattr(server, protocol)) as client:
        return float(client.infer(model, [wire], request_id=request_id).as_numpy("OUTPUT0")[0, 0])


def refused(server: ServerProcess, protocol: str) -> bool:
    try:
        ask(server, protocol, "gated", "late")
    except Exception:
        return True
    return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_requests_under_way_are_answered_and_new_ones_refused(tmp_path, number):
    repository = tmp_path / "models"
    gated = GatedModel(repository, tmp_path, extra="instance_group { count: 2 kind: KIND_CPU }")
    onnx_add_sub(repository)
    with ServerProcess(repository) as server, ThreadPoolExecutor(4) as pool:
        children = descendants(server.pid)
        assert len(server.model_processes()) == 2
        answers = [pool.submit(ask, server, protocol, "gated", protocol) for protocol in MODULES]
        gated.wait_for(*MODULES)
        queued = pool.submit(ask, server, "http", "gated", "queued")
        wait_until(lambda: pending(server) == 1, what="a request in the queue")
        server.process.send_signal(number)
        wait_until(lambda: "shutting down" in server.log, what="the signal to be noticed")
        wait_until(lambda: all(refused(server, protocol) for protocol in MODULES), what="the refusal of new requests")
        gated.open()
        assert [answer.result(PATIENCE_S) for answer in (*answers, queued)] == [1.0, 1.0, 1.0]
        assert server.process.wait(PATIENCE_S) == 0
        wait_until(lambda: not alive(children), what="the end of the children")


def test_a_connection_that_lives_has_one_more_request_while_the_server_shuts_down(tmp_path):
    onnx_scale(tmp_path)
    body = '{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [3.0]}]}'
    with ServerProcess(tmp_path) as server:
        host, _, port = server.http.rpartition(":")
        living = [http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S) for _ in range(2)]
        for connection in living:
            connection.request("GET", "/v2/health/ready")
            assert connection.getresponse().read() == b""
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "Waiting for in-flight requests to complete." in server.log, what="the signal to be noticed")
        living[0].request("POST", "/v2/models/scale/infer", body)
        answer = living[0].getresponse()
        assert (answer.status, answer.getheader("Connection")) == (200, "close"), answer.read()
        living[1].request("GET", "/v2/health/ready")
        assert living[1].getresponse().status == 400, "no longer ready"
        assert server.process.wait(PATIENCE_S) == 0


def test_a_request_under_way_may_still_call_other_models(tmp_path):
    """The models that a Python model calls stay until it is done, whichever of them it calls last."""
    repository = tmp_path / "models"
    gated = GatedModel(repository, tmp_path)
    onnx_scale(repository, "last", factor=3.0)
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [self.answer(request) for request in requests]

            def answer(self, request):
                tensor = request.inputs()[0]
                for model in ("gated", "last"):
                    call = pb_utils.InferenceRequest(
                        model_name=model, requested_output_names=["OUTPUT0"], inputs=[tensor], request_id=model)
                    response = call.exec()
                    if response.has_error():
                        return pb_utils.InferenceResponse(error=response.error())
                    output = pb_utils.get_output_tensor_by_name(response, "OUTPUT0").as_numpy()
                    tensor = pb_utils.Tensor("INPUT0", output)
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", output)])
    """
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    python_model(repository, "caller", source, f'name: "caller" backend: "python" max_batch_size: 1 {tensors}')
    with ServerProcess(repository) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, server, "grpc", "caller", "one", 2.0)
        gated.wait_for("gated")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in server.log, what="the signal to be noticed")
        gated.open()
        assert answer.result(PATIENCE_S) == 6.0
        assert server.process.wait(PATIENCE_S) == 0


def pending(server: ServerProcess) -> int:
    """Requests that wait for an instance of `gated`, by the metrics."""
    host, _, path = server.metrics_url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=PATIENCE_S)
    connection.request("GET", f"/{path}")
    text = connection.getresponse().read().decode()
    connection.close()
    lines = [line for line in text.splitlines() if line.startswith("nv_inference_pending_request_count{")]
    return sum(int(float(line.split()[-1])) for line in lines if 'model="gated"' in line)


def config(name: str) -> str:
    tensors = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
    return f'name: "{name}" backend: "python" {tensors}'


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}/exe").exists()}


def test_a_request_that_takes_longer_than_the_exit_timeout_does_not_hold_the_server(tmp_path):
    repository = tmp_path / "models"
    gated = GatedModel(repository, tmp_path)
    with ServerProcess(repository, "--exit-timeout-secs=1") as server, ThreadPoolExecutor(1) as pool:
        children = descendants(server.pid)
        answer = pool.submit(ask, server, "http", "gated", "stuck")
        gated.wait_for("stuck")
        server.terminate()
        assert answer.exception(PATIENCE_S) is not None
        wait_until(lambda: not alive(children), what="the end of the children")
        assert "requests were still under way after 1 s" in server.log


def test_a_server_that_is_killed_leaves_no_child_behind(tmp_path):
    repository = tmp_path / "models"
    gated = GatedModel(repository, tmp_path)
    python_sleeper(repository)
    with ServerProcess(repository) as server, ThreadPoolExecutor(1) as pool:
        children = descendants(server.pid)
        assert len(server.model_processes()) == 2
        answer = pool.submit(ask, server, "grpc", "gated", "stuck")
        gated.wait_for("stuck")
        server.kill()
        wait_until(lambda: not alive(children), what="the end of the children")
        assert answer.exception(PATIENCE_S) is not None


def test_a_server_can_be_stopped_while_a_model_loads(tmp_path):
    """A model that hangs in initialize holds neither the server nor leaves a process."""
    source = f"""
        import pathlib
        import time

        class TritonPythonModel:
            def initialize(self, args):
                pathlib.Path({str(tmp_path / "loading")!r}).touch()
                time.sleep(600)

            def execute(self, requests):
                return []
    """
    repository = tmp_path / "models"
    python_model(repository, "endless", source, config("endless"))
    with ServerProcess(repository, "--exit-timeout-secs=1", wait="live") as server:
        wait_until((tmp_path / "loading").exists, what="the load")
        children = descendants(server.pid)
        server.terminate()
        wait_until(lambda: not alive(children), what="the end of the children")


def tidy(repository: Path, folder: Path) -> Path:
    """Write a model; return the file that its finalize makes."""
    source = f"""
        import pathlib

        class TritonPythonModel:
            def execute(self, requests):
                return []

            def finalize(self):
                pathlib.Path({str(folder / "finalized")!r}).touch()
    """
    python_model(repository, "tidy", source, config("tidy"))
    return folder / "finalized"


def test_finalize_runs_when_the_server_stops(tmp_path):
    finalized = tidy(tmp_path / "models", tmp_path)
    with ServerProcess(tmp_path / "models") as server:
        assert server.terminate() == 0
    assert finalized.exists()


def test_finalize_runs_though_a_client_takes_no_answer_to_the_end(tmp_path):
    finalized = tidy(tmp_path / "models", tmp_path)
    with ServerProcess(tmp_path / "models", "--exit-timeout-secs=4") as server:
        with Peer(server.grpc, initial_window_size=0) as peer:
            peer.open(1, "ServerMetadata")
            peer.data(1, framed(b""))
            assert peer.next(HEADERS).stream_id == 1
            assert server.terminate() == 0
        assert "Traceback" not in server.log
        assert "requests were still under way" not in server.log
    assert finalized.exists()

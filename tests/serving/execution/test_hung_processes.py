"""A model's process that hangs is treated as one that ends: it is reported and replaced, and its requests are answered."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.serving.instances import written_model
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import PATIENCE_S, ServerProcess, descendants, wait_until

pytestmark = pytest.mark.long
MODEL = """
    import os
    import threading
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            texts = [request.inputs()[0].as_numpy()[0, 0].decode() for request in requests]
            for text in texts:
                exec(text)
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""
DECOUPLED = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                tensor = request.inputs()[0]
                sender = request.get_response_sender()
                for pause in tensor.as_numpy()[0, 0].decode().split():
                    time.sleep(float(pause))
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", tensor.as_numpy())]))
                if float(pause):
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                else:
                    self.kept = sender  # and never sends again
"""
ASKED = MODEL + "\n        def is_ready(self):\n            return True\n"
TEXT = [("INPUT0", "BYTES", [1])], [("OUTPUT0", "BYTES", [1])]
LIMIT = 'parameters {{ key: "slipway.execution_timeout_s" value {{ string_value: "{}" }} }}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("hung")
    written_model(repository, MODEL, *TEXT, name="plain")
    written_model(repository, ASKED, *TEXT, name="asked")
    written_model(repository, MODEL, *TEXT, name="bounded", extra=LIMIT.format(1.5))
    decoupled = "model_transaction_policy { decoupled: true }"
    written_model(repository, DECOUPLED, *TEXT, name="streams", extra=LIMIT.format(3) + decoupled)
    apart = 'parameters { key: "slipway.isolation" value { string_value: "\\"process\\"" } }'
    onnx_scale(repository, "apart", extra=apart + "instance_group [ { count: 1 kind: KIND_CPU } ]")
    with ServerProcess(repository, "--process-heartbeat-timeout-secs=3") as running:
        yield running


def child_of(server: ServerProcess, model: str, after: int = 0) -> int:
    """The process of a model's one instance, whose name is its last argument; the one that comes `after` another."""

    def found() -> int:
        for pid in descendants(server.pid) - {after}:
            with suppress(OSError, IndexError):  # it has ended meanwhile, or ends
                if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[-2] in (f"{model}_0", f"{model}_0_0"):
                    return pid
        return 0

    # A model is ready while its process starts again: a request would wait for it.
    pid: int = wait_until(found, what=f"{model} has a process")
    return pid


def infer(server: ServerProcess, model: str, text: str = "pass") -> tuple[int, Any]:
    datatype, data = ("FP32", [1.0]) if model == "apart" else ("BYTES", [text])
    tensor = {"name": "INPUT0", "datatype": datatype, "shape": [1, 1], "data": data}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def ready(server: ServerProcess, model: str) -> tuple[int, Any]:
    return server.get(f"/v2/models/{model}/ready")


def reasons_of(server: ServerProcess) -> dict[str, str]:
    """The reason that the index gives for each model."""
    return {row["name"]: row["reason"] for row in server.post("/v2/repository/index")[1]}


@pytest.mark.parametrize("model", ["plain", "asked", "apart"])
def test_a_stopped_process_is_reported_and_replaced_and_its_request_answered(server: ServerProcess, model: str):
    stopped = child_of(server, model)
    os.kill(stopped, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(infer, server, model)
        status, body = wait_until(lambda: (answer := ready(server, model))[0] != 200 and answer, what="it is not ready")
        assert status == 400
        assert "no sign of life" in body["error"]
        status, body = waiting.result(PATIENCE_S)
    assert status == 500
    assert "no sign of life for 3 s" in body["error"]
    assert infer(server, model)[0] == 200
    child_of(server, model, after=stopped)
    wait_until(lambda: server.get("/v2/health/ready")[0] == 200, what="the server is ready again")


def test_a_stopped_process_without_requests_makes_the_server_unready_and_is_replaced(server: ServerProcess):
    stopped = child_of(server, "plain")
    os.kill(stopped, signal.SIGSTOP)

    def unready() -> bool:
        status, reasons = server.get("/v2/health/ready")[0], reasons_of(server)
        silent = "plain_0: its process has given no sign of life for" in reasons["plain"]
        return status == 400 and silent and not reasons["bounded"]

    wait_until(unready, what="the server is not ready, and its index says why")
    wait_until(lambda: server.get("/v2/health/ready")[0] == 200, what="the server is ready again")
    child_of(server, "plain", after=stopped)


def test_a_process_that_ended_without_requests_comes_back_by_itself(server: ServerProcess):
    """A balancer sends nothing to a model that is not ready: no request would ever start it again."""
    ended = child_of(server, "asked")
    os.kill(ended, signal.SIGKILL)
    child_of(server, "asked", after=ended)
    wait_until(lambda: ready(server, "asked")[0] == 200, what="it is ready again")


@pytest.mark.parametrize("work", ["time.sleep(2 * 3)", "sum(range(250_000_000))"], ids=["sleeps", "holds the GIL"])
def test_a_long_execution_is_no_hang(server: ServerProcess, work: str):
    before = child_of(server, "plain")
    assert infer(server, "plain", work)[0] == 200
    assert child_of(server, "plain") == before


def test_a_batch_over_its_bound_is_answered_and_its_process_replaced(server: ServerProcess):
    before = child_of(server, "bounded")
    status, body = infer(server, "bounded", "time.sleep(600)")
    assert status == 500
    assert "model 'bounded': the batch took longer than 1.5 s" in body["error"]
    assert "slipway.execution_timeout_s" in body["error"]
    assert infer(server, "bounded")[0] == 200
    child_of(server, "bounded", after=before)


def test_a_stream_is_bounded_by_the_time_between_its_responses(server: ServerProcess):
    def stream(pauses: str) -> str:
        status, body = server.post("/v2/models/streams/generate_stream", {"INPUT0": pauses})
        assert status == 200, body
        return body.decode() if isinstance(body, bytes) else str(body)

    assert stream("1 1 1 0.1").count('"OUTPUT0"') == 4, "3.1 s in all, none of them too long"
    assert "no response for 3 s" in stream("0.1 0")
    assert stream("0.1").count('"OUTPUT0"') == 1


def test_a_process_that_stops_while_it_loads_fails_the_load(tmp_path: Path):
    source = MODEL + "\n        def initialize(self, args):\n            os.kill(os.getpid(), 19)\n"
    written_model(tmp_path, source, *TEXT, name="stops")
    flags = ("--process-heartbeat-timeout-secs=2", "--model-control-mode=explicit")
    with ServerProcess(tmp_path, *flags) as server:
        status, body = server.post("/v2/repository/models/stops/load")
    assert status == 500
    assert "gave no sign of life for 2 s and was ended" in body["error"]

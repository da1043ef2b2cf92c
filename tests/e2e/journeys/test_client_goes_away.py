"""A client that goes away: its queued request is never executed, and other clients are answered."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e.gated_model import GatedModel
from tests.support.serving_process import PATIENCE_S, ServerProcess, wait_until

BODY = {"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]}


class Setting:
    """A server with one gated model, one instance, one request at a time."""

    def __init__(self, folder: Path, max_batch_size: int = 1, extra: str = "") -> None:
        self.repository = folder / "models"
        self.gated = GatedModel(self.repository, folder, max_batch_size=max_batch_size, extra=extra)
        self.server = ServerProcess(self.repository)

    def count(self, what: str) -> int:
        status, statistics = self.server.get("/v2/models/gated/stats")
        assert status == 200, statistics
        return int(statistics["model_stats"][0]["inference_stats"][what]["count"])

    def pending(self) -> int:
        with urllib.request.urlopen(self.server.metrics_url, timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        return sum(
            int(float(line.split()[-1])) for line in lines if line.startswith("nv_inference_pending_request_count{")
        )

    def http_request(self, request_id: str) -> socket.socket:
        """A request that is sent; its answer can be read from the connection."""
        host, _, port = self.server.http.rpartition(":")
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        body = json.dumps(BODY | {"id": request_id}).encode()
        head = f"POST /v2/models/gated/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return connection


@pytest.fixture
def setting(tmp_path) -> Iterator[Setting]:
    made = Setting(tmp_path)
    with made.server:
        yield made


def answered(connection: socket.socket) -> bool:
    with connection:
        return connection.recv(12) == b"HTTP/1.1 200"


def grpc_input() -> tritonclient.grpc.InferInput:
    wire = tritonclient.grpc.InferInput("INPUT0", [1, 1], "FP32")
    wire.set_data_from_numpy(np.ones((1, 1), np.float32))
    return wire


def test_a_queued_request_of_a_closed_http_connection_is_never_executed(setting):
    first = setting.http_request("first")
    setting.gated.wait_for("first")
    gone = setting.http_request("gone")
    wait_until(lambda: setting.pending() == 1, what="a request in the queue")
    gone.close()
    wait_until(lambda: setting.pending() == 0, what="its leaving the queue")
    last = setting.http_request("last")
    setting.gated.open()
    assert answered(first)
    assert answered(last)
    assert setting.gated.began() == ["first", "last"]
    assert setting.count("success") == 2


def test_a_queued_request_of_a_cancelled_grpc_call_is_never_executed(setting):
    first = setting.http_request("first")
    setting.gated.wait_for("first")
    outcome: list[object] = []
    with tritonclient.grpc.InferenceServerClient(setting.server.grpc) as client:
        call = client.async_infer(
            "gated", [grpc_input()], lambda result, error: outcome.append(error), request_id="gone"
        )
        wait_until(lambda: setting.pending() == 1, what="a request in the queue")
        call.cancel()
        wait_until(lambda: setting.pending() == 0, what="its leaving the queue")
        setting.gated.open()
        assert answered(first)
        wait_until(lambda: outcome, what="the client's callback")
        assert client.infer("gated", [grpc_input()], request_id="last").as_numpy("OUTPUT0")[0, 0] == 1
    assert setting.gated.began() == ["first", "last"]


def test_a_queued_request_whose_grpc_deadline_passes_is_never_executed(setting):
    first = setting.http_request("first")
    setting.gated.wait_for("first")
    with tritonclient.grpc.InferenceServerClient(setting.server.grpc) as client:
        with pytest.raises(tritonclient.grpc.InferenceServerException, match="Deadline Exceeded"):
            client.infer("gated", [grpc_input()], request_id="late", client_timeout=0.2)
        wait_until(lambda: setting.pending() == 0, what="its leaving the queue")
        setting.gated.open()
        assert answered(first)
        client.infer("gated", [grpc_input()], request_id="last")
    assert setting.gated.began() == ["first", "last"]


def test_others_in_the_batch_of_a_client_that_left_are_answered(tmp_path):
    """Three requests run as one batch; the second client leaves while it runs."""
    batching = "dynamic_batching { preferred_batch_size: [3] max_queue_delay_microseconds: 60000000 }"
    setting = Setting(tmp_path, max_batch_size=3, extra=batching)
    with setting.server:
        connections = [setting.http_request(name) for name in ("one", "two", "three")]
        setting.gated.wait_for("one", "two", "three")
        connections[1].close()
        setting.gated.open()
        assert answered(connections[0])
        assert answered(connections[2])
        status, statistics = setting.server.get("/v2/models/gated/stats")
        assert (status, statistics["model_stats"][0]["execution_count"]) == (200, 1)


def test_a_hundred_clients_that_leave_at_once_leave_nothing_behind(setting):
    first = setting.http_request("first")
    setting.gated.wait_for("first")
    with ThreadPoolExecutor(8) as pool:
        connections = list(pool.map(setting.http_request, (f"gone-{number}" for number in range(100))))
    wait_until(lambda: setting.pending() == 100, what="a hundred requests in the queue")
    for connection in connections:
        connection.close()
    wait_until(lambda: setting.pending() == 0, what="an empty queue")
    setting.gated.open()
    assert answered(first)
    assert answered(setting.http_request("last"))
    assert setting.gated.began() == ["first", "last"]

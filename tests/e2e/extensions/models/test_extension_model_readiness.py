"""A Python model's `is_ready` as the stock clients see it, for the model, for the server, and in the health service."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.support.model_factory import onnx_scale, python_model, tensors_text
from tests.support.serving_process import ServerProcess

TENSORS = tensors_text("input", [("INPUT0", "FP32", [1])]) + tensors_text("output", [("OUTPUT0", "FP32", [1])])
SOURCE = """
import pathlib
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.drained = pathlib.Path(args["model_repository"]) / "drained"

    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]

    async def is_ready(self):
        return not self.drained.exists()
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    onnx_scale(folder, "other")
    python_model(folder, "drains", SOURCE, f'name: "drains" backend: "python" max_batch_size: 8 {TENSORS}')
    return folder


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[ServerProcess]:
    with ServerProcess(models) as running:
        yield running


def test_a_model_that_drains_is_not_ready_and_neither_is_the_server(client: TritonClient, models: Path) -> None:
    def seen() -> list[bool]:
        asked = (("is_model_ready", "drains"), ("is_model_ready", "drains", "1"), ("is_model_ready", "other"))
        return [*(client.call(*one) for one in asked), client.call("is_server_ready"), client.call("is_server_live")]

    assert seen() == [True] * 5
    (models / "drains" / "drained").touch()
    try:
        assert seen() == [False, False, True, False, True]
        x = np.ones((1, 1), np.float32)
        assert client.infer("drains", {"INPUT0": x}).outputs["OUTPUT0"] == 1, "what comes all the same is served"
    finally:
        (models / "drains" / "drained").unlink()
    assert seen() == [True] * 5


def test_a_client_that_watches_the_health_of_the_server_sees_the_change(server: ServerProcess, models: Path) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        (models / "drains" / "drained").touch()
        try:
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            now = health.Check(health_pb2.HealthCheckRequest(service="inference.GRPCInferenceService"))
            assert now.status == health_pb2.HealthCheckResponse.NOT_SERVING
        finally:
            (models / "drains" / "drained").unlink()
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()

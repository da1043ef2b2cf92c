"""A rollout with the stock clients: sequences that stay on their version, models that call others, and a server that dies."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.extensions.clients import client_of, stream_of
from tests.serving.traffic.rollouts_in_process import BOTH, policy, scale
from tests.support.model_factory import onnx_sequence_sum, python_model
from tests.support.serving_process import ServerProcess

PATIENT = "max_sequence_idle_microseconds: 600000000 direct { }"
CALLS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                asked = pb_utils.InferenceRequest(
                    model_name="scale", requested_output_names=["OUTPUT0"], inputs=[request.inputs()[0]]
                )
                responses.append(pb_utils.InferenceResponse(asked.exec().output_tensors()))
            return responses
"""
CALLS_CONFIG = """
    name: "calls" backend: "python" max_batch_size: 8
    input { name: "INPUT0" data_type: TYPE_FP32 dims: [1] } output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [1] }
"""
ONE = {"INPUT0": np.ones((1, 1), np.float32)}
HEADER = {"sticky": {"header": "x-user"}}
USERS = [f"user-{number}" for number in range(12)]

# Gives a value to a sequence; (version, total).
Add = Callable[..., tuple[str, float]]


def sums(repository: Path, text: str) -> None:
    """A model `sum` of two versions, whose configuration ends with `text`."""
    config = repository / "sum/config.pbtxt"
    if not config.exists():
        for number in (1, 2):
            onnx_sequence_sum(repository, "sum", version=number, extra=BOTH)
    start = (
        config.read_text().partition(BOTH)[0].replace("direct { }", PATIENT)
        if PATIENT not in config.read_text()
        else ""
    )
    config.write_text((start or config.read_text().partition(BOTH)[0]) + f"{BOTH}\n{text}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    sums(repository, policy(0))
    scale(repository, policy(40, **HEADER))
    python_model(repository, "calls", CALLS, CALLS_CONFIG)
    flags = [f"--load-model={name}" for name in ("sum", "scale", "calls")]
    with ServerProcess(repository, "--model-control-mode=explicit", *flags) as one:
        yield one
        assert "Traceback" not in one.log


@pytest.fixture(params=["http", "grpc", "stream"])
def add(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Add]:
    streamed = request.param == "stream"
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(client_of(server, "grpc" if streamed else request.param))
        stream = stack.enter_context(stream_of(server)) if streamed else None

        def give(sequence: str, value: float, flags: str = "", version: str = "") -> tuple[str, float]:
            inputs = {"INPUT": np.array([[value]], np.float32)}
            reported: dict[str, Any] = {
                "sequence_id": sequence,
                "sequence_start": "s" in flags,
                "sequence_end": "e" in flags,
                "model_version": version,
            }
            if stream is None:
                answer = client.infer("sum", inputs, **reported)
                return answer.model_version, float(answer.outputs["OUTPUT"][0, 0])
            stream.send("sum", inputs, **reported)
            result = stream.next()
            return result.get_response().model_version, float(result.as_numpy("OUTPUT")[0, 0])

        yield give


def test_a_sequence_ends_on_its_version_over_weights_and_releases(server: ServerProcess, add: Add) -> None:
    repository = server.repositories[0]

    def serve(text: str) -> None:
        sums(repository, text)
        with client_of(server, "http") as client:
            client.call("load_model", "sum")

    serve(policy(0))
    assert add("a", 1, "s") == ("1", 1)
    assert add("named", 1, "s", "champion") == ("1", 1)
    serve(policy(100))
    assert add("b", 10, "s") == ("2", 10)
    assert add("a", 1) == ("1", 2)
    serve("")  # promoted: the alias has gone, and the highest answers
    assert add("a", 1) == ("1", 3)
    (repository / "sum/1/model.onnx").touch()
    (repository / "sum/2/model.onnx").touch()
    serve(policy(0))  # both versions are built anew beside the old
    assert add("a", 1) == ("1", 4)
    assert add("b", 1, "e") == ("2", 11)
    assert add("named", 1, "e", "champion") == ("1", 2)
    assert add("a", 1, "e") == ("1", 5)
    assert add("a", 1, "se") == ("1", 1)


def test_a_model_that_calls_another_follows_its_rollout_with_the_clients_header(server: ServerProcess) -> None:
    with client_of(server, "http") as client:
        direct = {user: client.infer("scale", ONE, headers={"x-user": user}).model_version for user in USERS}
        called = {
            user: client.infer("calls", ONE, headers={"x-user": user}).outputs["OUTPUT0"].item() for user in USERS
        }
    assert set(direct.values()) == {"1", "2"}
    assert called == {user: float(version) for user, version in direct.items()}


def test_a_server_that_was_killed_comes_back_with_the_same_shares(server: ServerProcess) -> None:
    def shares(of: ServerProcess) -> dict[str, str]:
        with client_of(of, "grpc") as client:
            return {user: client.infer("scale", ONE, headers={"x-user": user}).model_version for user in USERS}

    before = shares(server)
    server.kill()
    with ServerProcess(server.repositories[0], *server.flags) as again:
        assert shares(again) == before

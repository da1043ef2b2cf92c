"""Restricted protocols with the stock clients: each group of routes opens to its own key, and to nothing else."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, stream_of
from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
HEADERS = {"http": "{group}-key", "grpc": "triton-grpc-protocol-{group}-key"}
# A call of each group. HTTP's health is open here, as the test waits for it.
CALLS: dict[str, Callable[[TritonClient, dict[str, str]], Any]] = {
    "health": lambda client, headers: client.call("is_server_ready", headers=headers),
    "metadata": lambda client, headers: client.call("get_server_metadata", headers=headers),
    "inference": lambda client, headers: client.infer("scale", ONE, headers=headers),
    "shared-memory": lambda client, headers: client.call("get_system_shared_memory_status", headers=headers),
    "model-config": lambda client, headers: client.call("get_model_config", "scale", headers=headers),
    "model-repository": lambda client, headers: client.call("get_model_repository_index", headers=headers),
    "statistics": lambda client, headers: client.call("get_inference_statistics", headers=headers),
    "trace": lambda client, headers: client.call("get_trace_settings", headers=headers),
    "logging": lambda client, headers: client.call("get_log_settings", headers=headers),
}
RESTRICTED = [(kind, group) for kind in PROTOCOLS for group in CALLS if (kind, group) != ("http", "health")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository)
    flag = {"http": "--http-restricted-api", "grpc": "--grpc-restricted-protocol"}
    flags = [f"{flag[kind]}={group}:{group}-key=secret-{group}" for kind, group in RESTRICTED]
    with ServerProcess(repository, "--model-control-mode=explicit", "--load-model=*", *flags) as server:
        yield server
        assert "secret-" not in server.log


@pytest.mark.parametrize(("kind", "group"), RESTRICTED)
def test_a_group_opens_to_its_own_key_alone(server: ServerProcess, kind: str, group: str) -> None:
    name = HEADERS[kind].format(group=group)
    other = {HEADERS[kind].format(group=each): f"secret-{each}" for each in CALLS if each != group}
    with client_of(server, kind) as client:
        for headers in ({}, {name: "wrong"}, other):
            with pytest.raises(InferenceServerException, match=f"restricted, expecting header '{name}'") as caught:
                CALLS[group](client, headers)
            assert caught.value.status() == {"http": "403", "grpc": "StatusCode.PERMISSION_DENIED"}[kind]
        CALLS[group](client, {name: f"secret-{group}"})  # raises where it is refused


def test_a_stream_needs_the_key_of_inference(server: ServerProcess) -> None:
    wrong = pytest.raises(InferenceServerException, match="expecting header 'triton-grpc-protocol-inference-key'")
    with stream_of(server) as stream, wrong:
        stream.next()
    with stream_of(server, headers={"triton-grpc-protocol-inference-key": "secret-inference"}) as stream:
        stream.send("scale", ONE)
        assert stream.next().as_numpy("OUTPUT0").tolist() == [[2]]

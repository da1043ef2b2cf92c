"""The model repository extension with the stock clients: index, load with overrides, unload with dependents, errors."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import PROTOCOLS, client_of, refused
from tests.support.model_factory import onnx_scale, write_config
from tests.support.serving_process import ServerProcess, wait_until

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
PIPELINE = """platform: "ensemble" max_batch_size: 8
input { name: "X" data_type: TYPE_FP32 dims: 1 } output { name: "Y" data_type: TYPE_FP32 dims: 1 }
ensemble_scheduling { step { model_name: "step" model_version: -1
    input_map { key: "INPUT0" value: "X" } output_map { key: "OUTPUT0" value: "Y" } } }"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    onnx_scale(repository, "scale", 2.0)
    onnx_scale(repository, "scale", 3.0, version=2)
    onnx_scale(repository, "step", 5.0)
    write_config(repository / "pipeline", PIPELINE)
    (repository / "pipeline" / "1").mkdir()
    onnx_scale(repository, "broken")
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repository, "--model-control-mode=explicit") as server:
        yield server
        assert "Traceback" not in server.log


@pytest.fixture(params=PROTOCOLS)
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[TritonClient]:
    """With nothing loaded."""
    with client_of(server, request.param) as client:
        yield client
        for model in {name for (name, _), (state, _) in index(client).items() if state == "READY"}:
            client.call("unload_model", model, unload_dependents=True)
        wait_until(lambda: "READY" not in {state for state, _ in index(client).values()}, what="the end of all models")


def index(client: TritonClient) -> dict[tuple[str, str], tuple[str, str]]:
    """(name, version) -> (state, reason)."""
    rows = client.described("get_model_repository_index") or []
    return {(r["name"], r.get("version", "")): (r.get("state", ""), r.get("reason", "")) for r in rows}


def factor(client: TritonClient, model: str = "scale") -> float:
    return float(client.infer(model, ONE).outputs["OUTPUT0"][0, 0])


def test_the_server_says_that_it_has_the_extension_and_unload_dependents(client: TritonClient) -> None:
    extensions = set(client.described("get_server_metadata")["extensions"])
    assert {"model_repository", "model_repository(unload_dependents)"} <= extensions


def test_the_index_lists_what_is_on_disk_and_each_loaded_version_with_its_state(client: TritonClient) -> None:
    assert {name for name, _ in index(client)} >= {"scale", "step", "pipeline", "broken"}
    client.call("load_model", "scale")
    assert index(client)["scale", "2"] == ("READY", "")
    client.call("unload_model", "scale")
    wait_until(lambda: index(client)["scale", "2"] == ("UNAVAILABLE", "unloaded"), what="the end of the model")


def test_a_configuration_in_the_request_holds_until_the_model_is_unloaded(client: TritonClient) -> None:
    override = json.dumps(
        {"backend": "onnxruntime", "max_batch_size": 2, "version_policy": {"specific": {"versions": [1]}}}
    )
    client.call("load_model", "scale", config=override)
    assert (factor(client), client.described("get_model_config", "scale")["max_batch_size"]) == (2, 2)
    client.call("load_model", "scale")
    assert (factor(client), client.described("get_model_config", "scale")["max_batch_size"]) == (2, 2)
    client.call("unload_model", "scale")
    client.call("load_model", "scale")
    assert (factor(client), client.described("get_model_config", "scale")["max_batch_size"]) == (3, 8)


def test_files_in_the_request_are_loaded_in_place_of_those_on_disk(client: TritonClient, repository: Path) -> None:
    content = (repository / "step" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    client.call("load_model", "scale", config=config, files={"file:7/model.onnx": content})
    assert factor(client) == 5
    assert client.described("get_model_metadata", "scale")["versions"] == ["7"]
    client.call("load_model", "scale")
    assert factor(client) == 3


def test_a_model_that_is_not_on_disk_may_come_whole_in_the_request(client: TritonClient, repository: Path) -> None:
    content = (repository / "step" / "1" / "model.onnx").read_bytes()
    config = json.dumps({"backend": "onnxruntime", "max_batch_size": 8})
    client.call("load_model", "visitor", config=config, files={"file:1/model.onnx": content})
    assert factor(client, "visitor") == 5


def test_files_without_a_configuration_are_refused(client: TritonClient, repository: Path) -> None:
    content = (repository / "step" / "1" / "model.onnx").read_bytes()
    # The stock clients ask for a configuration themselves; an empty one is none.
    message = refused(client, "INVALID_ARG", client.call, "load_model", "scale", config="", files={"file:1/m": content})
    assert "config" in message


def test_what_was_loaded_for_an_ensemble_goes_with_it_only_when_asked(client: TritonClient) -> None:
    client.call("load_model", "pipeline")
    assert client.infer("pipeline", {"X": ONE["INPUT0"]}).outputs["Y"].item() == 5
    assert index(client)["step", "1"][0] == "READY"
    client.call("unload_model", "pipeline")
    wait_until(lambda: index(client)["pipeline", "1"][0] == "UNAVAILABLE", what="the end of the ensemble")
    assert client.call("is_model_ready", "step") is True
    client.call("load_model", "pipeline")
    client.call("unload_model", "pipeline", unload_dependents=True)
    wait_until(lambda: index(client)["step", "1"][0] == "UNAVAILABLE", what="the end of its step")


def test_a_load_that_fails_says_why_and_so_does_the_index(client: TritonClient) -> None:
    message = refused(client, "INVALID_ARG", client.call, "load_model", "broken")
    assert "load failed for model 'broken': version 1 is at UNAVAILABLE state: " in message
    state, reason = index(client)["broken", "1"]
    assert (state, reason in message) == ("UNAVAILABLE", True)
    assert reason


def test_a_model_that_does_not_exist_cannot_be_loaded_and_unloading_it_does_nothing(client: TritonClient) -> None:
    message = refused(client, "NOT_FOUND", client.call, "load_model", "nope")
    assert "failed to load 'nope', failed to poll from model repository" in message
    client.call("unload_model", "nope")

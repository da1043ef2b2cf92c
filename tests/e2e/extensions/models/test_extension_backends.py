"""Models of each format with the stock clients: ONNX and its settings, TorchScript, TensorFlow where it is installed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import refused
from tests.support.model_factory import onnx_add_sub, onnx_scale, torchscript_add_sub
from tests.support.saved_model import needs_tensorflow, saved_model
from tests.support.serving_process import ServerProcess

FROM_FUTURE = 9999
SETTINGS = """instance_group { count: 2 kind: KIND_CPU } optimization { graph { level: 1 } }
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
parameters { key: "session.intra_op.allow_spinning" value { string_value: "0" } }
parameters { key: "enable_mem_pattern" value { string_value: "false" } }"""
A, B = np.array([[1, 2, 3, 4]], np.float32), np.array([[4, 3, 2, 1]], np.float32)


def onnx_from_the_future(repository: Path) -> None:
    path = onnx_scale(repository, "future") / "1" / "model.onnx"
    model = onnx.load(path)
    model.opset_import[0].version = FROM_FUTURE
    onnx.save(model, path)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("models")
    onnx_add_sub(repository, "onnx_set", extra=SETTINGS)
    onnx_from_the_future(repository)
    torchscript_add_sub(repository)
    torchscript_add_sub(
        repository, "torch_set", extra='parameters { key: "INFERENCE_MODE" value { string_value: "false" } }'
    )
    return repository


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    with ServerProcess(repository, "--model-control-mode=explicit") as server:
        yield server
        assert "Traceback" not in server.log


def loaded(client: TritonClient, model: str) -> dict[str, Any]:
    """Its configuration."""
    client.call("load_model", model)
    return dict(client.described("get_model_config", model))


def test_an_onnx_model_runs_with_its_session_options(client: TritonClient) -> None:
    config = loaded(client, "onnx_set")
    assert config["parameters"]["intra_op_thread_count"]["string_value"] == "2"
    found = client.infer("onnx_set", {"INPUT0": A, "INPUT1": B}).outputs
    assert [array.tolist() for array in found.values()] == [(A + B).tolist(), (A - B).tolist()]


def test_a_wrong_option_is_refused_with_its_name(client: TritonClient) -> None:
    config = {"backend": "onnxruntime", "parameters": {"intra_op_thread_count": {"string_value": "many"}}}
    message = refused(client, "INVALID_ARG", client.call, "load_model", "onnx_set", config=json.dumps(config))
    assert "intra_op_thread_count" in message


def test_a_provider_that_this_machine_lacks_is_named(client: TritonClient) -> None:
    accelerator = {"cpu_execution_accelerator": [{"name": "openvino"}]}
    config = {"backend": "onnxruntime", "optimization": {"execution_accelerators": accelerator}}
    message = refused(client, "UNAVAILABLE", client.call, "load_model", "onnx_set", config=json.dumps(config))
    assert "openvino" in message.lower()


def test_an_opset_that_the_runtime_cannot_run_is_refused_with_both_versions(client: TritonClient) -> None:
    message = refused(client, "INVALID_ARG", client.call, "load_model", "future")
    assert f"needs opset {FROM_FUTURE} of ai.onnx, but" in message
    assert "runs at most opset" in message


@pytest.mark.parametrize("model", ["torch_add_sub", "torch_set"])
def test_a_torchscript_model_runs_with_and_without_inference_mode(client: TritonClient, model: str) -> None:
    assert loaded(client, model)["platform"] == "pytorch_libtorch"
    found = client.infer(model, {"INPUT__0": A, "INPUT__1": B}).outputs
    assert [found[f"OUTPUT__{number}"].tolist() for number in (0, 1)] == [(A + B).tolist(), (A - B).tolist()]


@needs_tensorflow
def test_a_saved_model_runs_and_is_completed_from_its_signature(client: TritonClient, repository: Path) -> None:
    if not (repository / "saved").exists():
        saved_model(repository)
    assert loaded(client, "saved")["platform"] == "tensorflow_savedmodel"
    found = client.infer("saved", {"x": A, "word": np.array([[b"one"]], np.object_)}).outputs
    assert (found["double"].tolist(), found["shouted"].tolist()) == ((2 * A).tolist(), [[b"ONE"]])

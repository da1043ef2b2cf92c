"""The model configuration extension: what the stock clients are told of a model, as it was written and as it was completed."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import refused
from tests.support.model_factory import onnx_add_sub, onnx_scale, python_model
from tests.support.serving_process import ServerProcess

COMPLETES_ITSELF = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [1]})
            config.add_output({"name": "OUTPUT0", "data_type": "TYPE_FP32", "dims": [1]})
            config.set_max_batch_size(4)
            config.set_dynamic_batching()
            return config

        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", r.inputs()[0].as_numpy())]) for r in requests]
"""
WRITTEN = """
instance_group { count: 2 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 100 priority_levels: 3
    default_priority_level: 2 }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
# One example for each rule that a completed configuration may break.
CONTRADICTIONS = {
    "datatype": ({"input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [4]}]}, "INPUT0"),
    "dims": ({"input": [{"name": "INPUT0", "data_type": "TYPE_FP32", "dims": [5]}]}, "INPUT0"),
    "name": ({"output": [{"name": "NONE", "data_type": "TYPE_FP32", "dims": [4]}]}, "NONE"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    onnx_add_sub(repository, "bare_onnx", config=None)
    python_model(repository, "bare_python", COMPLETES_ITSELF)
    onnx_scale(repository, "written", extra=WRITTEN)
    for version in (1, 2, 3):
        onnx_scale(repository, "versions", float(version), version=version)
    with ServerProcess(repository, "--model-control-mode=explicit", "--load-model=*") as server:
        yield server
        assert "Traceback" not in server.log


def config(client: TritonClient, model: str, version: str = "") -> dict[str, Any]:
    return dict(client.described("get_model_config", model, version))


def tensors(rows: list[dict[str, Any]]) -> list[tuple[str, str, list[int]]]:
    return [(row["name"], row["data_type"], [int(dim) for dim in row["dims"]]) for row in rows]


def test_a_model_without_a_configuration_is_completed_from_its_file(client: TritonClient) -> None:
    found = config(client, "bare_onnx")
    assert (found["name"], found["backend"], found["platform"]) == ("bare_onnx", "onnxruntime", "onnxruntime_onnx")
    assert found["default_model_filename"] == "model.onnx"
    assert found["max_batch_size"] == 4
    assert tensors(found["input"]) == [("INPUT0", "TYPE_FP32", [4]), ("INPUT1", "TYPE_FP32", [4])]
    assert "dynamic_batching" in found
    assert found["instance_group"][0]["kind"] in ("KIND_CPU", "KIND_GPU")


def test_a_python_model_completes_its_own(client: TritonClient) -> None:
    found = config(client, "bare_python")
    assert (found["backend"], found["max_batch_size"]) == ("python", 4)
    assert tensors(found["output"]) == [("OUTPUT0", "TYPE_FP32", [1])]


def test_what_is_written_is_told_as_it_is(client: TritonClient) -> None:
    found = config(client, "written")
    batching = found["dynamic_batching"]
    assert [int(size) for size in batching["preferred_batch_size"]] == [2, 4]
    assert [int(batching[name]) for name in ("priority_levels", "default_priority_level")] == [3, 2]
    assert [(group["count"], group["kind"]) for group in found["instance_group"]] == [(2, "KIND_CPU")]
    assert found["parameters"]["intra_op_thread_count"]["string_value"] == "1"


@pytest.mark.parametrize("contradiction", CONTRADICTIONS)
def test_what_contradicts_the_file_is_refused_and_names_the_tensor(client: TritonClient, contradiction: str) -> None:
    fields, tensor = CONTRADICTIONS[contradiction]
    override = json.dumps({"backend": "onnxruntime", "max_batch_size": 8, **fields})
    assert f"'{tensor}'" in refused(client, "INVALID_ARG", client.call, "load_model", "bare_onnx", config=override)
    assert client.call("is_model_ready", "bare_onnx") is True, "what was loaded goes on"


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ({"latest": {"num_versions": 1}}, ["3"]),
        ({"latest": {"num_versions": 2}}, ["2", "3"]),
        ({"all": {}}, ["1", "2", "3"]),
        ({"specific": {"versions": [1, 3]}}, ["1", "3"]),
    ],
    ids=["the latest", "the latest two", "all", "two by number"],
)
def test_the_version_policy_says_which_versions_serve(
    client: TritonClient, policy: dict[str, Any], versions: list[str]
) -> None:
    override = json.dumps({"backend": "onnxruntime", "max_batch_size": 8, "version_policy": policy})
    client.call("load_model", "versions", config=override)
    assert client.described("get_model_metadata", "versions")["versions"] == versions
    one = {"INPUT0": np.ones((1, 1), np.float32)}
    for version in versions:
        assert client.infer("versions", one, model_version=version).outputs["OUTPUT0"].item() == float(version)
        assert config(client, "versions", version)["name"] == "versions"
    for version in {"1", "2", "3"} - set(versions):
        assert client.call("is_model_ready", "versions", version) is False

"""What a model is loaded from, with the stock clients: chosen configurations and files, and warm-up from every data source."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import refused
from tests.support.model_factory import config_type, onnx_scale, python_model, tensors_text
from tests.support.serving_process import ServerProcess

ONE = {"INPUT0": np.ones((1, 1), np.float32)}
# Answers with its earlier requests as JSON: a list of values for each.
WITNESS = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.seen = []

        def execute(self, requests):
            return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

        def answer(self, array):
            told = pb_utils.Tensor("SEEN", np.array([[json.dumps(self.seen)]], np.object_))
            text = array.dtype == np.object_
            self.seen.append([one.decode() for one in array.ravel()] if text else array.ravel().tolist())
            return pb_utils.InferenceResponse([told])
"""
SAMPLE = """{{ name: "{source}" batch_size: {rows} count: {count}
    inputs {{ key: "IN" value {{ data_type: {kind} dims: 2 {data} }} }} }}"""
SOURCES = {"zero": "zero_data: true", "random": "random_data: true", "file": 'input_data_file: "sample"'}
FILES = {"FP32": np.array([1.5, -2], np.float32).tobytes(), "BYTES": b"\x02\x00\x00\x00ab\x00\x00\x00\x00"}


def witness(repository: Path, name: str, datatype: str, source: str, rows: int = 1, count: int = 1) -> Path:
    tensors = tensors_text("input", [("IN", datatype, [2])]) + tensors_text("output", [("SEEN", "BYTES", [1])])
    sample = SAMPLE.format(source=source, rows=rows, count=count, kind=config_type(datatype), data=SOURCES[source])
    config = f'backend: "python" max_batch_size: 4 {tensors} instance_group {{ count: 1 }} model_warmup {sample}'
    folder = python_model(repository, name, WITNESS, config)
    (folder / "warmup").mkdir()
    (folder / "warmup" / "sample").write_bytes(FILES[datatype])
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    custom = onnx_scale(repository, "custom", 2.0)
    (custom / "configs").mkdir()
    (custom / "configs" / "h100.pbtxt").write_text('max_batch_size: 3 backend: "onnxruntime"')
    onnx_scale(repository, "plain", 2.0)
    named = onnx_scale(repository, "named", 3.0, extra='default_model_filename: "three.onnx"')
    (named / "1" / "model.onnx").rename(named / "1" / "three.onnx")
    onnx_scale(repository, "by_gpu", 4.0, extra='cc_model_filenames { key: "99.9" value: "absent.onnx" }')
    for source in SOURCES:
        witness(repository, f"{source}_numbers", "FP32", source)
        witness(repository, f"{source}_words", "BYTES", source)
    witness(repository, "repeated", "FP32", "file", rows=2, count=3)
    (witness(repository, "cold", "FP32", "file") / "warmup" / "sample").unlink()
    loaded = [f"--load-model={folder.name}" for folder in repository.iterdir() if folder.name != "cold"]
    with ServerProcess(repository, "--model-control-mode=explicit", "--model-config-name=h100", *loaded) as server:
        yield server
        assert "Traceback" not in server.log


def seen(client: TritonClient, model: str, array: Any) -> Any:
    """What a model, loaded anew, was asked before the first client."""
    client.call("unload_model", model)
    client.call("load_model", model)
    return json.loads(client.infer(model, {"IN": array}).outputs["SEEN"].item())


def test_a_custom_configuration_is_used_where_a_model_has_it(client: TritonClient) -> None:
    sizes = [client.described("get_model_config", model)["max_batch_size"] for model in ("custom", "plain")]
    assert sizes == [3, 8]
    message = refused(client, "INVALID_ARG", client.infer, "custom", {"INPUT0": np.ones((4, 1), np.float32)})
    assert "from 1 to 3" in message


def test_the_configuration_may_name_the_file(client: TritonClient) -> None:
    assert client.described("get_model_config", "named")["default_model_filename"] == "three.onnx"
    assert client.infer("named", ONE).outputs["OUTPUT0"].item() == 3


def test_a_file_for_another_gpu_is_not_needed(client: TritonClient) -> None:
    assert client.infer("by_gpu", ONE).outputs["OUTPUT0"].item() == 4
    assert client.described("get_model_config", "by_gpu")["cc_model_filenames"] == {"99.9": "absent.onnx"}


def test_a_model_is_warmed_up_with_zeros_random_data_or_a_file(client: TritonClient) -> None:
    numbers, words = np.zeros((1, 2), np.float32), np.array([[b"x", b"y"]], np.object_)
    assert seen(client, "zero_numbers", numbers) == [[0, 0]]
    assert seen(client, "file_numbers", numbers) == [[1.5, -2]]
    assert [len(values) for values in seen(client, "random_numbers", numbers)] == [2]
    assert seen(client, "zero_words", words) == [["", ""]]
    assert seen(client, "file_words", words) == [["ab", ""]]
    assert [len(values) for values in seen(client, "random_words", words)] == [2]


def test_a_sample_may_be_repeated_and_is_not_counted(client: TritonClient) -> None:
    assert seen(client, "repeated", np.zeros((1, 2), np.float32)) == [[1.5, -2]] * 6
    assert inferences(client, "repeated") == 1


def inferences(client: TritonClient, model: str) -> int:
    (row,) = client.described("get_inference_statistics", model)["model_stats"]
    return int(row.get("inference_count", 0))


def test_a_warm_up_that_cannot_be_made_fails_the_load(client: TritonClient) -> None:
    message = refused(client, "INVALID_ARG", client.call, "load_model", "cold")
    assert "'IN' names a data file that is not in the model's warmup folder" in message

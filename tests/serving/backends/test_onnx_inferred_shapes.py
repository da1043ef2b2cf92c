"""Outputs of which ONNX Runtime infers more than the file says: either may stand in a configuration, and nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from repository.config import model_config
from repository.config.file_check import ModelFile, misfits
from repository.config.signature import Signature
from serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from tests.serving.in_process import core
from tests.support.model_factory import onnx_bytes, write_onnx
from tests.support.serving_process import ServerProcess

IN = 'input { name: "IN" data_type: TYPE_FP32 dims: 2 }'


def identity(repository: Path, config: str, output: list[Any], name: str = "model") -> Path:
    """A model that gives its input [rows, 2] back, and says `output` of its shape."""
    content = onnx_bytes(
        [helper.make_node("Identity", ["IN"], ["OUT"])],
        [("IN", "FP32", ["rows", 2])],
        [("OUT", "FP32", output)],
    )
    write_onnx(repository, name, content)
    (repository / name / "config.pbtxt").write_text(f'backend: "onnxruntime" max_batch_size: 4 {config}')
    return repository / name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    repository = tmp_path_factory.mktemp("models")
    for strict in ("said", "left_out"):
        dims = "dims: 2" if strict == "said" else ""
        identity(repository, f'{IN} output {{ name: "OUT" data_type: TYPE_FP32 {dims} }}', ["a", "b"], strict)
    identity(repository, f'{IN} output {{ name: "OUT" data_type: TYPE_FP32 dims: 3 }}', ["a", "b"], "wrong")
    # As the inputs of Triton's ragged batching are: OUT follows from what the scheduler gives.
    content = onnx_bytes(
        [helper.make_node("Identity", ["SHAPES"], ["OUT"])],
        [("IN", "FP32", ["elements"]), ("SHAPES", "FP32", ["rows", 2])],
        [("OUT", "FP32", ["x", "y"])],
    )
    write_onnx(repository, "item_shapes", content)
    (repository / "item_shapes" / "config.pbtxt").write_text(
        """backend: "onnxruntime" max_batch_size: 4
        input { name: "IN" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }
        output { name: "OUT" data_type: TYPE_FP32 dims: 2 }
        batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_FP32 source_input: "IN" }"""
    )
    with ServerProcess(repository, "--exit-on-error=false", "--strict-readiness=false") as running:
        yield running


def infer(server: ServerProcess, model: str, shape: list[int]) -> tuple[int, Any]:
    tensor = {"name": "IN", "shape": shape, "datatype": "FP32", "data": [1.0] * int(np.prod(shape))}
    return server.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


@pytest.mark.parametrize("model", ["said", "left_out"])
def test_an_output_whose_shape_follows_is_served_with_it(server: ServerProcess, model: str) -> None:
    status, answer = infer(server, model, [3, 2])
    assert status == 200, answer
    assert answer["outputs"][0]["shape"] == [3, 2]
    assert server.get(f"/v2/models/{model}")[1]["outputs"][0]["shape"] == [-1, 2]


def test_an_output_that_follows_from_a_batch_input_is_served(server: ServerProcess) -> None:
    status, answer = infer(server, "item_shapes", [1, 4, 3])
    assert status == 200, answer
    assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([1, 2], [4, 3])


def test_a_configuration_that_contradicts_the_inferred_shape_is_refused(server: ServerProcess) -> None:
    status, answer = server.post("/v2/repository/index", {})
    (row,) = [row for row in answer if row["name"] == "wrong"]
    assert (
        "output 'OUT' has shape [-1, 3], the batch dimension included, but the model expects [-1, 2]" in row["reason"]
    )
    assert status == 200


@pytest.mark.asyncio
async def test_without_completion_it_is_checked_by_the_same_rule(tmp_path: Path) -> None:
    identity(tmp_path, f'{IN} output {{ name: "OUT" data_type: TYPE_FP32 dims: 2 }}', ["a", "b"])
    async with core(tmp_path, load_model=("model",), disable_auto_complete_config=True) as server:
        assert server.model_ready("model", "")


@pytest.mark.parametrize(
    ("dims", "right"), [("dims: 2", True), ("dims: -1", True), ("", True), ("dims: 3", False), ("dims: [2, 1]", False)]
)
def test_a_preview_agrees_with_the_server(tmp_path: Path, dims: str, right: bool) -> None:
    folder = identity(tmp_path, "", ["a", "b"])
    stored = OnnxRuntimeBackend.file_signature(folder / "1" / "model.onnx").to_json()
    assert stored["outputs"][0]["inferred"] == [-1, 2]
    file = ModelFile("onnxruntime", "model.onnx", frozenset({"model.onnx"}), Signature.from_json(stored))
    config = model_config.parse(f'max_batch_size: 4 {IN} output {{ name: "OUT" data_type: TYPE_FP32 {dims} }}')
    assert (misfits(config, file) == []) is right


def test_rows_that_the_file_leaves_open_may_be_known_too(tmp_path: Path) -> None:
    content = onnx_bytes(
        [helper.make_node("Identity", ["IN"], ["OUT"])], [("IN", "FP32", [2, 2])], [("OUT", "FP32", ["a", "b"])]
    )
    path = write_onnx(tmp_path, "fixed", content)
    text = 'input { name: "IN" data_type: TYPE_FP32 dims: [2, 2] } output { name: "OUT" data_type: TYPE_FP32 dims: [2, 2] }'
    config = model_config.parse(text)
    OnnxRuntimeBackend.complete_config(config, path.parent if path.is_file() else path / "1")
    assert list(config.output[0].dims) == [2, 2]

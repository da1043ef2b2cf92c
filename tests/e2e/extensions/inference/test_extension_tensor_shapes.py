"""Tensors of unusual shapes with the stock clients: reshaped, scalar, empty, optional."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.e2e.clients.tritonclient_adapter import TritonClient
from tests.e2e.extensions.clients import refused
from tests.support.model_factory import onnx_bytes, onnx_identity, python_model, write_config, write_onnx
from tests.support.serving_process import ServerProcess

TENSOR = '{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: {outside} reshape {{ shape: {inside} }} }}'
OPTIONAL = """backend: "python" max_batch_size: %d
input { name: "A" data_type: TYPE_FP32 dims: 1 } input { name: "B" data_type: TYPE_FP32 dims: 1 optional: true }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 } dynamic_batching { }"""
# A + B, where a B that does not come is 100.
SUM = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [self.answer({tensor.name(): tensor.as_numpy() for tensor in r.inputs()}) for r in requests]

        def answer(self, given):
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", given["A"] + given.get("B", 100))])
"""


def reshaped(repository: Path, name: str, outside: list[int], inside: list[int], rows: int) -> None:
    """The client's shape outside, that of the ONNX file inside."""
    free = [f"d{index}" if dim == -1 else dim for index, dim in enumerate(inside)]
    whole = (["batch"] if rows else []) + free
    nodes = [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])]
    write_onnx(repository, name, onnx_bytes(nodes, [("INPUT0", "FP32", whole)], [("OUTPUT0", "FP32", whole)]))
    tensors = [("input", "INPUT0"), ("output", "OUTPUT0")]
    text = "\n".join(TENSOR.format(kind=kind, name=tensor, outside=outside, inside=inside) for kind, tensor in tensors)
    write_config(repository / name, f'backend: "onnxruntime" max_batch_size: {rows}\n{text}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("models")
    reshaped(repository, "flat_outside", [6], [2, 3], 8)
    reshaped(repository, "variable", [-1, 4], [-1, 2, 2], 8)
    reshaped(repository, "scalar_rows", [1], [], 8)
    onnx_identity(repository, "rows")
    onnx_identity(repository, "bytes_rows", "BYTES")
    onnx_identity(repository, "whole", max_batch_size=0)
    python_model(repository, "optional", SUM, OPTIONAL % 8)
    with ServerProcess(repository) as server:
        yield server
        assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("flat_outside", (3, 6)),
        ("variable", (3, 5, 4)),
        ("scalar_rows", (3, 1)),
        ("rows", (2, 0)),
        ("whole", (0,)),
    ],
)
def test_a_tensor_comes_back_in_the_shape_that_the_configuration_tells(
    client: TritonClient, model: str, shape: tuple[int, ...]
) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = client.infer(model, {"INPUT0": array}).outputs["OUTPUT0"]
    assert (found.shape, found.tolist()) == (shape, array.tolist())


def test_an_empty_tensor_of_strings_passes(client: TritonClient) -> None:
    assert client.infer("bytes_rows", {"INPUT0": np.empty((1, 0), np.object_)}).outputs["OUTPUT0"].shape == (1, 0)


def test_metadata_tells_the_shapes_of_the_client(client: TritonClient) -> None:
    described = client.described("get_model_metadata", "flat_outside")
    assert [[int(dim) for dim in tensor["shape"]] for tensor in described["inputs"] + described["outputs"]] == [
        [-1, 6],
        [-1, 6],
    ]
    config = client.described("get_model_config", "flat_outside")
    assert [int(dim) for dim in config["input"][0]["reshape"]["shape"]] == [2, 3]


def test_the_models_own_shape_is_refused(client: TritonClient) -> None:
    array = np.zeros((1, 2, 3), np.float32)
    assert "'INPUT0'" in refused(client, "INVALID_ARG", client.infer, "flat_outside", {"INPUT0": array})


def test_an_optional_input_may_be_left_out_and_a_required_one_may_not(client: TritonClient) -> None:
    one = np.ones((1, 1), np.float32)
    found = [
        client.infer("optional", inputs).outputs["OUT"].item() for inputs in ({"A": one}, {"A": one, "B": 4 * one})
    ]
    assert found == [101, 5]
    assert "'A'" in refused(client, "INVALID_ARG", client.infer, "optional", {"B": one})


def test_requests_with_and_without_it_do_not_mix_in_a_batch(client: TritonClient) -> None:
    one = np.ones((1, 1), np.float32)
    requests = [{"A": number * one} | ({"B": one} if number % 2 else {}) for number in range(8)]
    answers = [answer.outputs["OUT"].item() for answer in client.many("optional", requests)]
    assert answers == [number + (1 if number % 2 else 100) for number in range(8)]

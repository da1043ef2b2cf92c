"""The models for the comparison of servers: one repository that Slipway and Triton both load, created once."""

import io
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from tests.support.model_factory import onnx_bytes, write_config, write_onnx

# One instance and one thread for every model, so that only the servers differ and not their resources.
ONE_THREAD = """
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
parameters { key: "inter_op_thread_count" value { string_value: "1" } }
"""
ONE_INSTANCE = "instance_group [ { count: 1 kind: KIND_CPU } ]\n"
ONNX = 'platform: "onnxruntime_onnx"\nbackend: "onnxruntime"\n'
PYTHON = 'backend: "python"\n'
SIZES = (512, 1024, 1024, 10)
IDENTITY_PY = """\
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
        return responses
"""
Tensors = list[tuple[str, str, str]]  # rows of (name, TYPE_*, dims)
IDENTITY_TENSORS: tuple[Tensors, Tensors] = ([("INPUT0", "TYPE_FP32", "-1")], [("OUTPUT0", "TYPE_FP32", "-1")])


def write(repository: Path, names: list[str]) -> Path:
    """Write the models that do not exist yet. A model exists if its configuration exists."""
    for name in names:
        if not (repository / name / "config.pbtxt").exists():
            WRITERS[name](repository, name)
    return repository


def inputs(name: str, size: int | None = None) -> dict[str, np.ndarray]:
    """Return the tensors of one request. size: the number of values for an identity model."""
    random = np.random.default_rng(0)
    if name == "simple":
        return {"INPUT0": np.arange(16, dtype=np.int32)[None], "INPUT1": np.ones((1, 16), np.int32)}
    if name == "bert":
        return {key: np.ones((1, 128), np.int64) for key in ("input_ids", "attention_mask")}
    if name.startswith("mlp"):
        return {"input": random.standard_normal((1, 512), np.float32)}
    size = size or 1024
    shape = (1, size) if name.endswith("_batched") else (size,)
    return {"INPUT0": random.standard_normal(shape, np.float32)}


def _config(name: str, backend: str, max_batch_size: int, tensors: tuple[Tensors, Tensors], extra: str) -> str:
    text = f'name: "{name}"\n{backend}max_batch_size: {max_batch_size}\n'
    for kind, rows in zip(("input", "output"), tensors, strict=True):
        items = ", ".join(f'{{ name: "{key}" data_type: {datatype} dims: [ {dims} ] }}' for key, datatype, dims in rows)
        text += f"{kind} [ {items} ]\n"
    return text + extra


def _simple(repository: Path, name: str) -> None:
    shape = ["batch", 16]
    content = onnx_bytes(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [("INPUT0", "INT32", shape), ("INPUT1", "INT32", shape)],
        [("OUTPUT0", "INT32", shape), ("OUTPUT1", "INT32", shape)],
    )
    write_onnx(repository, name, content)
    tensors = tuple([(f"{kind}{index}", "TYPE_INT32", "16") for index in (0, 1)] for kind in ("INPUT", "OUTPUT"))
    write_config(repository / name, _config(name, ONNX, 8, tensors, ONE_THREAD))  # type: ignore[arg-type]


def _mlp(batching: str) -> Callable[[Path, str], None]:
    def writer(repository: Path, name: str) -> None:
        write_onnx(repository, name, mlp_bytes())
        tensors = ([("input", "TYPE_FP32", "512")], [("output", "TYPE_FP32", "10")])
        write_config(repository / name, _config(name, ONNX, 64, tensors, ONE_THREAD + batching))

    return writer


def mlp_bytes() -> bytes:
    """Return the multilayer perceptron: input FP32 [n, 512] -> output FP32 [n, 10], ReLU between the layers."""
    random = np.random.default_rng(7)
    nodes, weights, last = [], {}, "input"
    for index, (rows, columns) in enumerate(itertools.pairwise(SIZES)):
        final = index == len(SIZES) - 2
        weights[f"w{index}"] = (random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        weights[f"b{index}"] = (random.standard_normal(columns) * 0.01).astype(np.float32)
        nodes.append(helper.make_node("Gemm", [last, f"w{index}", f"b{index}"], ["output" if final else f"g{index}"]))
        if not final:
            nodes.append(helper.make_node("Relu", [f"g{index}"], [f"r{index}"]))
        last = f"r{index}"
    return onnx_bytes(nodes, [("input", "FP32", ["n", SIZES[0]])], [("output", "FP32", ["n", SIZES[-1]])], weights)


def _identity(repository: Path, name: str) -> None:
    node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
    write_onnx(repository, name, onnx_bytes([node], [("INPUT0", "FP32", ["n"])], [("OUTPUT0", "FP32", ["n"])]))
    write_config(repository / name, _config(name, ONNX, 0, IDENTITY_TENSORS, ONE_THREAD))


def _python_identity(max_batch_size: int) -> Callable[[Path, str], None]:
    def writer(repository: Path, name: str) -> None:
        path = repository / name / "1" / "model.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(IDENTITY_PY)
        write_config(repository / name, _config(name, PYTHON, max_batch_size, IDENTITY_TENSORS, ONE_INSTANCE))

    return writer


def _bert(repository: Path, name: str) -> None:
    write_onnx(repository, name, _bert_bytes())
    tensors = (
        [(key, "TYPE_INT64", "128") for key in ("input_ids", "attention_mask")],
        [("logits", "TYPE_FP32", "2")],
    )
    extra = ONE_THREAD + "dynamic_batching { max_queue_delay_microseconds: 500 }\n"
    write_config(repository / name, _config(name, ONNX, 32, tensors, extra))


def _bert_bytes() -> bytes:
    """Return an encoder of BERT's shape: 2 layers, 2 heads, 128 wide, 128 tokens, a vocabulary of 30,522."""
    import torch
    from torch import nn

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(30_522, 128), nn.Embedding(128, 128)
            layer = nn.TransformerEncoderLayer(128, 2, 512, dropout=0.0, activation="gelu", batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.pool, self.classify = nn.Linear(128, 128), nn.Linear(128, 2)
            self.register_buffer("numbers", torch.arange(128)[None])

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            # A float mask is added to the scores, so that rows of only padding need no separate branch.
            padding = (1.0 - attention_mask.to(torch.float32)) * -10_000.0
            rows = self.words(input_ids) + self.places(self.numbers)
            rows = self.layers(rows, src_key_padding_mask=padding)
            return self.classify(torch.tanh(self.pool(rows[:, 0])))

    torch.manual_seed(7)
    names = ["input_ids", "attention_mask"]
    example = (torch.randint(0, 30_522, (2, 128)), torch.ones(2, 128, dtype=torch.int64))
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated, but creates the simplest graph
        torch.onnx.export(
            Encoder().eval(),
            example,
            content,
            input_names=names,
            output_names=["logits"],
            opset_version=17,
            dynamo=False,
            dynamic_axes={key: {0: "batch"} for key in [*names, "logits"]},
        )
    return content.getvalue()


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "simple": _simple,
    "mlp": _mlp("dynamic_batching { }\n"),
    "mlp_delay": _mlp("dynamic_batching { max_queue_delay_microseconds: 500 }\n"),
    "mlp_unbatched": _mlp(""),
    "model": _mlp("dynamic_batching { }\n"),  # the name that the lesson's script requests
    "identity": _identity,
    "python": _python_identity(0),
    "python_batched": _python_identity(64),
    "bert": _bert,
}

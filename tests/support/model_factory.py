"""Writes small real models into a repository: ONNX by onnx.helper, TorchScript by torch, `model.py` as text.

Each function writes <repository>/<name>/<version>/<file> and, unless config is None, <name>/config.pbtxt. `extra` is
text added to that configuration (dynamic_batching {...}, instance_group [...]). The result is the model's folder.
"""

import itertools
import textwrap
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ONNX_TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
# Names that Triton accepts and that an address must encode; the first name is from Triton's own tests.
ODD_NAMES = (
    "nop_TYPE_FP32_-1,-1",
    "two words ",
    "100%2F",
    "a#b?c&d=e",
    "größe 模型",
    "quo'te\"<b>",
    "back\\slash;",
    "~$[x]{{y}}..",
)
OPSET = 17
IR_VERSION = 9


def config_type(datatype: str) -> str:
    """Return the name in config.pbtxt of a wire datatype."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def tensors_text(kind: str, tensors: list[tuple[str, str, list[int]]]) -> str:
    """Return `input [...]` or `output [...]` for rows of (name, wire datatype, dims without the batch dimension)."""
    rows = ", ".join(
        f'{{ name: "{name}" data_type: {config_type(datatype)} dims: {dims} }}' for name, datatype, dims in tensors
    )
    return f"{kind} [ {rows} ]\n"


def write_config(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    return folder


def _config(name: str, backend: str, max_batch_size: int, inputs: Any, outputs: Any, extra: str) -> str:
    head = f'name: "{name}"\nbackend: "{backend}"\nmax_batch_size: {max_batch_size}\n'
    return head + tensors_text("input", inputs) + tensors_text("output", outputs) + extra + "\n"


def _finish(
    repository: Path,
    name: str,
    backend: str,
    max_batch_size: int,
    inputs: Any,
    outputs: Any,
    config: str | None,
    extra: str,
) -> Path:
    folder = Path(repository, name)
    if config is None:
        return folder
    return write_config(folder, config or _config(name, backend, max_batch_size, inputs, outputs, extra))


# -- ONNX ------------------------------------------------------------------------------------------------------------
def onnx_bytes(
    nodes: list[Any],
    inputs: list[tuple[str, str, list[Any]]],
    outputs: list[tuple[str, str, list[Any]]],
    weights: dict[str, Any] | None = None,
) -> bytes:
    """Return a checked ONNX model. dims include the batch dimension; a name in dims is a free dimension."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, ONNX_TYPES[datatype], dims) for name, datatype, dims in inputs],
        [helper.make_tensor_value_info(name, ONNX_TYPES[datatype], dims) for name, datatype, dims in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    return model.SerializeToString()


def write_onnx(repository: Path, name: str, content: bytes, version: int = 1) -> Path:
    path = Path(repository, name, str(version), "model.onnx")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def onnx_identity(
    repository: Path,
    name: str = "identity",
    datatype: str = "FP32",
    dims: list[int] | None = None,
    max_batch_size: int = 8,
    version: int = 1,
    config: str | None = "",
    extra: str = "",
) -> Path:
    """Write an identity model: OUTPUT0 = INPUT0, any datatype. dims: without the batch dimension; -1 is free."""
    dims = [-1] if dims is None else dims
    batch = ["batch"] if max_batch_size else []
    shape = batch + [f"d{index}" if dim == -1 else dim for index, dim in enumerate(dims)]
    content = onnx_bytes(
        [helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])],
        [("INPUT0", datatype, shape)],
        [("OUTPUT0", datatype, shape)],
    )
    write_onnx(repository, name, content, version)
    tensors = [("INPUT0", datatype, dims)], [("OUTPUT0", datatype, dims)]
    return _finish(repository, name, "onnxruntime", max_batch_size, *tensors, config, extra)


def onnx_add_sub(
    repository: Path,
    name: str = "add_sub",
    datatype: str = "FP32",
    dims: list[int] | None = None,
    max_batch_size: int = 8,
    version: int = 1,
    config: str | None = "",
    extra: str = "",
) -> Path:
    """Write a model: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1; dims default to [4]."""
    dims = [4] if dims is None else dims
    shape = (["batch"] if max_batch_size else []) + list(dims)
    content = onnx_bytes(
        [
            helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
            helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
        ],
        [("INPUT0", datatype, shape), ("INPUT1", datatype, shape)],
        [("OUTPUT0", datatype, shape), ("OUTPUT1", datatype, shape)],
    )
    write_onnx(repository, name, content, version)
    tensors = [(f"INPUT{i}", datatype, dims) for i in (0, 1)], [(f"OUTPUT{i}", datatype, dims) for i in (0, 1)]
    return _finish(repository, name, "onnxruntime", max_batch_size, *tensors, config, extra)


def onnx_scale(
    repository: Path,
    name: str = "scale",
    factor: float = 2.0,
    max_batch_size: int = 8,
    version: int = 1,
    config: str | None = "",
    extra: str = "",
) -> Path:
    """Write a model: OUTPUT0 = INPUT0 * factor, FP32 [1]. The factor shows which version or upload answered."""
    shape: list[Any] = ["batch", 1] if max_batch_size else [1]
    content = onnx_bytes(
        [helper.make_node("Mul", ["INPUT0", "factor"], ["OUTPUT0"])],
        [("INPUT0", "FP32", shape)],
        [("OUTPUT0", "FP32", shape)],
        {"factor": np.array([factor], np.float32)},
    )
    write_onnx(repository, name, content, version)
    tensors = [("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])]
    return _finish(repository, name, "onnxruntime", max_batch_size, *tensors, config, extra)


def onnx_mlp(
    repository: Path,
    name: str = "mlp",
    sizes: tuple[int, ...] = (512, 1024, 1024, 10),
    max_batch_size: int = 32,
    version: int = 1,
    config: str | None = "",
    extra: str = "",
    seed: int = 0,
) -> Path:
    """Write a multilayer perceptron: INPUT FP32 [sizes[0]] -> OUTPUT FP32 [sizes[-1]], Relu between the layers."""
    random = np.random.default_rng(seed)
    nodes, weights, last = [], {}, "INPUT"
    for index, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        final = index == len(sizes) - 2
        weights[f"w{index}"] = (random.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        weights[f"b{index}"] = np.zeros(columns, np.float32)
        nodes.append(helper.make_node("Gemm", [last, f"w{index}", f"b{index}"], ["OUTPUT" if final else f"g{index}"]))
        if not final:
            nodes.append(helper.make_node("Relu", [f"g{index}"], [f"r{index}"]))
        last = f"r{index}"
    content = onnx_bytes(
        nodes, [("INPUT", "FP32", ["batch", sizes[0]])], [("OUTPUT", "FP32", ["batch", sizes[-1]])], weights
    )
    write_onnx(repository, name, content, version)
    tensors = [("INPUT", "FP32", [sizes[0]])], [("OUTPUT", "FP32", [sizes[-1]])]
    return _finish(repository, name, "onnxruntime", max_batch_size, *tensors, config, extra)


def onnx_slow(
    repository: Path,
    name: str = "slow",
    iterations: int = 200,
    max_batch_size: int = 8,
    version: int = 1,
    config: str | None = "",
    extra: str = "",
) -> Path:
    """Write a slow model: OUTPUT0 = INPUT0, FP32 [1], after `iterations` 256x256 matrix products (about 0.15 ms each)."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["state", "matrix"], ["next_state"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [256, 256]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next_state", TensorProto.FLOAT, [256, 256]),
        ],
    )
    nodes = [
        helper.make_node("ReduceMax", ["INPUT0"], ["largest"], keepdims=0),
        helper.make_node("Add", ["matrix", "largest"], ["start"]),
        helper.make_node("Loop", ["count", "yes", "start"], ["end"], body=body),
        helper.make_node("ReduceMax", ["end"], ["peak"], keepdims=0),
        helper.make_node("Mul", ["peak", "zero"], ["nothing"]),
        helper.make_node("Add", ["INPUT0", "nothing"], ["OUTPUT0"]),
    ]
    weights = {
        "matrix": np.zeros((256, 256), np.float32),
        "count": np.array(iterations, np.int64),
        "yes": np.array(True),
        "zero": np.array(0, np.float32),
    }
    shape: list[Any] = ["batch", 1] if max_batch_size else [1]
    content = onnx_bytes(nodes, [("INPUT0", "FP32", shape)], [("OUTPUT0", "FP32", shape)], weights)
    write_onnx(repository, name, content, version)
    tensors = [("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])]
    return _finish(repository, name, "onnxruntime", max_batch_size, *tensors, config, extra)


def onnx_sequence_sum(
    repository: Path, name: str = "sequence_sum", max_batch_size: int = 8, version: int = 1, extra: str = ""
) -> Path:
    """Write a model: OUTPUT = the sum of a sequence's INPUTs so far, FP32 [1]; direct sequence batcher, implicit state."""
    shape = ["batch", 1]
    nodes = [
        helper.make_node("Sub", ["one", "START"], ["keep"]),
        helper.make_node("Mul", ["STATE", "keep"], ["kept"]),
        helper.make_node("Add", ["INPUT", "kept"], ["OUTPUT"]),
        helper.make_node("Identity", ["OUTPUT"], ["NEW_STATE"]),
    ]
    inputs = [(each, "FP32", shape) for each in ("INPUT", "START", "STATE")]
    outputs = [(each, "FP32", shape) for each in ("OUTPUT", "NEW_STATE")]
    write_onnx(repository, name, onnx_bytes(nodes, inputs, outputs, {"one": np.ones((1, 1), np.float32)}), version)
    batching = """sequence_batching { direct { }
        control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
        state { input_name: "STATE" output_name: "NEW_STATE" data_type: TYPE_FP32 dims: [1] } }
        """
    tensors = [("INPUT", "FP32", [1])], [("OUTPUT", "FP32", [1])]
    return _finish(repository, name, "onnxruntime", max_batch_size, *tensors, "", batching + extra)


def onnx_sequence_controls(
    repository: Path,
    name: str = "counted",
    strategy: str = "direct { }",
    correlation_type: str = "INT64",
    max_batch_size: int = 4,
    extra: str = "",
) -> Path:
    """Write a model: OUTPUT0 = the sum of a sequence's INPUT0 so far, ID = its correlation ID; all controls, implicit state."""
    column = ["batch", 1]
    nodes = [
        helper.make_node("Sub", ["one", "START"], ["keep"]),
        helper.make_node("Mul", ["STATE", "keep"], ["kept"]),
        helper.make_node("Add", ["INPUT0", "kept"], ["OUTPUT0"]),
        helper.make_node("Identity", ["OUTPUT0"], ["NEW_STATE"]),
        helper.make_node("Concat", ["START", "END", "READY"], ["CONTROLS"], axis=1),
        helper.make_node("Identity", ["CORRID"], ["ID"]),
    ]
    inputs = [(each, "FP32", column) for each in ("INPUT0", "START", "END", "READY", "STATE")]
    outputs = [(each, "FP32", column) for each in ("OUTPUT0", "NEW_STATE")]
    content = onnx_bytes(
        nodes,
        [*inputs, ("CORRID", correlation_type, column)],
        [*outputs, ("CONTROLS", "FP32", ["batch", 3]), ("ID", correlation_type, column)],
        {"one": np.ones((1, 1), np.float32)},
    )
    write_onnx(repository, name, content)
    controls = "".join(
        f'control_input {{ name: "{kind}" control {{ kind: CONTROL_SEQUENCE_{kind} fp32_false_true: [0, 1] }} }} '
        for kind in ("START", "END", "READY")
    )
    correlation = f"kind: CONTROL_SEQUENCE_CORRID data_type: {config_type(correlation_type)}"
    batching = f"""sequence_batching {{ {strategy} {controls}
        control_input {{ name: "CORRID" control {{ {correlation} }} }}
        state {{ input_name: "STATE" output_name: "NEW_STATE" data_type: TYPE_FP32 dims: [1] }} {extra} }}"""
    made = [("OUTPUT0", "FP32", [1]), ("CONTROLS", "FP32", [3]), ("ID", correlation_type, [1])]
    return _finish(repository, name, "onnxruntime", max_batch_size, [("INPUT0", "FP32", [1])], made, "", batching)


# -- TorchScript -----------------------------------------------------------------------------------------------------
def write_torchscript(repository: Path, name: str, module: Any, version: int = 1) -> Path:
    """Script a torch.nn.Module. torch warns that scripting is deprecated, but the format is still served."""
    import torch

    path = Path(repository, name, str(version), "model.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module.eval()).save(str(path))
    return path


def torchscript_add_sub(
    repository: Path,
    name: str = "torch_add_sub",
    dims: list[int] | None = None,
    max_batch_size: int = 8,
    version: int = 1,
    config: str | None = "",
    extra: str = "",
) -> Path:
    """Write the model of `onnx_add_sub`, FP32, with the positional names of Triton's pytorch backend."""
    import torch

    class AddSub(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return a + b, a - b

    dims = [4] if dims is None else dims
    write_torchscript(repository, name, AddSub(), version)
    tensors = [(f"INPUT__{i}", "FP32", dims) for i in (0, 1)], [(f"OUTPUT__{i}", "FP32", dims) for i in (0, 1)]
    return _finish(repository, name, "pytorch", max_batch_size, *tensors, config, extra)


def torchscript_bert_classifier(
    repository: Path, name: str = "bert_classifier", version: int = 1, seed: int = 0
) -> Path:
    """Write a tiny classifier with the inputs and outputs of the seed's `bert_classifier`, without a configuration."""
    import torch

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(1000, 16)
            self.classifier = torch.nn.Linear(16, 2)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            mask = attention_mask.unsqueeze(-1).to(torch.float32)
            words = self.embedding(input_ids) * mask
            return self.classifier(words.sum(1) / mask.sum(1).clamp(min=1.0))

    torch.manual_seed(seed)
    write_torchscript(repository, name, Classifier(), version)
    return Path(repository, name)


# -- model.py --------------------------------------------------------------------------------------------------------
def pass_on_ensemble(repository: Path, name: str, step: str, max_batch_size: int = 4) -> Path:
    """Write an ensemble that passes INPUT0 to the model `step` and returns its OUTPUT0, both FP32 [-1]."""
    tensors = tensors_text("input", [("INPUT0", "FP32", [-1])]) + tensors_text("output", [("OUTPUT0", "FP32", [-1])])
    maps = 'input_map { key: "INPUT0" value: "INPUT0" } output_map { key: "OUTPUT0" value: "OUTPUT0" }'
    steps = f'ensemble_scheduling {{ step {{ model_name: "{step}" model_version: -1 {maps} }} }}'
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    write_config(folder, f'name: "{name}" platform: "ensemble" max_batch_size: {max_batch_size} {tensors} {steps}')
    return folder


def python_model(repository: Path, name: str, source: str, config: str | None = None, version: int = 1) -> Path:
    """Write a model of the Python backend. source: the text of its model.py, which may be indented."""
    path = Path(repository, name, str(version), "model.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(source))
    return path.parent.parent if config is None else write_config(path.parent.parent, config)


def python_scale(
    repository: Path,
    name: str = "scale",
    factor: float = 2.0,
    max_batch_size: int = 8,
    version: int = 1,
    extra: str = "",
) -> Path:
    """Write the model of `onnx_scale` for the Python backend."""
    source = f"""
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * {factor})]) for array in inputs]
    """
    tensors = [("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])]
    return python_model(repository, name, source, _config(name, "python", max_batch_size, *tensors, extra), version)


def python_sleeper(
    repository: Path, name: str = "sleeper", max_batch_size: int = 8, version: int = 1, extra: str = ""
) -> Path:
    """Write a model that sleeps: INPUT0 FP32 [1] is a number of seconds, OUTPUT0 = INPUT0. A batch sleeps for its longest."""
    source = """
        import time
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
                time.sleep(float(max(array.max() for array in inputs)))
                return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
    """
    tensors = [("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])]
    return python_model(repository, name, source, _config(name, "python", max_batch_size, *tensors, extra), version)


def python_decoupled(repository: Path, name: str = "decoupled", max_batch_size: int = 0, extra: str = "") -> Path:
    """Write a decoupled model: INPUT0 FP32 [1] is n; it sends n responses with OUTPUT0 = 0, 1, ...; n below 0 is an error."""
    source = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                    sender, count = request.get_response_sender(), int(array.flat[0])
                    if count < 0:
                        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("below 0")))
                    for index in range(min(count, 20)):
                        output = pb_utils.Tensor("OUTPUT0", np.full_like(array, index))
                        sender.send(pb_utils.InferenceResponse([output]))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    tensors = [("INPUT0", "FP32", [1])], [("OUTPUT0", "FP32", [1])]
    extra = f"model_transaction_policy {{ decoupled: true }} {extra}"
    return python_model(repository, name, source, _config(name, "python", max_batch_size, *tensors, extra))


def python_optional(repository: Path, name: str = "optional", max_batch_size: int = 8, extra: str = "") -> Path:
    """Write a model: OUTPUT0 = INPUT0 + INPUT1, both FP32 [-1]. INPUT1 is optional, with the default 0."""
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def execute(self, requests):
                return [self.answer(request) for request in requests]

            def answer(self, request):
                array = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
                other = pb_utils.get_input_tensor_by_name(request, "INPUT1")
                total = array if other is None else array + other.as_numpy()
                return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", total)])
    """
    inputs = [("INPUT0", "FP32", [-1]), ("INPUT1", "FP32", [-1])]
    config = _config(name, "python", max_batch_size, inputs, [("OUTPUT0", "FP32", [-1])], extra)
    second = 'name: "INPUT1" data_type: TYPE_FP32'
    return python_model(repository, name, source, config.replace(second, f"{second} optional: true"))

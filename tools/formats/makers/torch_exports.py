"""PyTorch models and Hugging Face transformers, written by torch.onnx, optimum and ONNX Runtime's quantisation."""

import logging
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from case import Case
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16
from optimum.exporters.onnx import main_export
from torch import nn

TORCH = "torch onnxscript"
HF = "transformers optimum-onnx torch"


class Digits(nn.Module):
    """A small convolution followed by a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(1, 16, 3)
        self.classify = nn.Linear(16, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classify(torch.relu(self.features(image)).mean((2, 3)))


class Reader(CalibrationDataReader):
    """Three rows for the calibration."""

    def __init__(self) -> None:
        self.rows = iter([{"rows": row[None]} for row in random(3, 8)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rows, None)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).eval()


def answer(model: nn.Module, *inputs: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(*map(torch.from_numpy, inputs)).numpy()


def bare(path: str) -> None:
    """Remove the source locations on the exporting machine from each node. Nothing else in the file changes."""
    model = onnx.load(path, load_external_data=False)
    for node in model.graph.node:
        node.ClearField("metadata_props")
    for function in model.functions:
        for node in function.node:
            node.ClearField("metadata_props")
    Path(path).write_bytes(model.SerializeToString())


def exported() -> None:
    model, rows = perceptron(), random(3, 8)
    dynamic = {"rows": {0: "batch"}, "scores": {0: "batch"}}
    names = {"input_names": ["rows"], "output_names": ["scores"]}

    for opset in (9, 17):
        case = Case(f"torch_script_opset{opset}", f"TorchScript exporter (dynamo=False), opset {opset}", TORCH)
        path = case.path("model.onnx")
        torch.onnx.export(
            model, torch.zeros(1, 8), path, dynamo=False, opset_version=opset, dynamic_axes=dynamic, **names
        )
        case.served({"rows": rows}, {"scores": answer(model, rows)})

    digits, images = Digits().eval(), random(2, 1, 8, 8)
    batch = torch.export.Dim("batch")
    case = Case("torch_dynamo", "torch.export exporter, weights in a separate file", TORCH)
    path = case.path("digits.onnx")
    torch.onnx.export(
        digits, (torch.zeros(2, 1, 8, 8),), path, dynamo=True, dynamic_shapes={"image": {0: batch}}, external_data=True
    )
    bare(path)
    whole = case.files
    output = onnx.load(path, load_external_data=False).graph.output[0].name
    case.served({"image": images}, {output: answer(digits, images)}, tolerance=1e-4)

    case = Case("torch_dynamo_data_missing", "torch_dynamo without its weights file", TORCH)
    Path(case.path("digits.onnx")).write_bytes((whole / "digits.onnx").read_bytes())
    case.refused("digits.onnx.data")

    case = Case("torch_dynamo_opset_newest", "torch.export exporter, opset 24", TORCH)
    path = case.path("model.onnx")
    shapes = ({0: batch},)
    torch.onnx.export(
        model,
        (torch.zeros(2, 8),),
        path,
        dynamo=True,
        dynamic_shapes=shapes,
        opset_version=24,
        external_data=False,
        **names,
    )
    bare(path)
    case.served({"rows": rows}, {"scores": answer(model, rows)})

    case = Case("torch_dynamo_fixed_batch", "exported with an example of one row and no dynamic axis", TORCH)
    path = case.path("model.onnx")
    torch.onnx.export(model, (torch.zeros(1, 8),), path, dynamo=True, external_data=False, **names)
    bare(path)
    case.served({"rows": rows[:1]}, {"scores": answer(model, rows[:1])}, said="dynamic_shapes")

    torch.manual_seed(1)
    lstm = Recurrent().eval()
    steps = random(2, 5, 3)
    case = Case("torch_lstm", "an LSTM over sequences of any length, TorchScript exporter", TORCH)
    axes = {"steps": {0: "batch", 1: "length"}, "last": {0: "batch"}}
    path = case.path("model.onnx")
    torch.onnx.export(
        lstm,
        torch.zeros(2, 5, 3),
        path,
        dynamo=False,
        opset_version=14,
        dynamic_axes=axes,
        input_names=["steps"],
        output_names=["last"],
    )
    case.served({"steps": steps}, {"last": answer(lstm, steps)})

    quantised(model, rows)


class Recurrent(nn.Module):
    """An LSTM and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return self.lstm(steps)[0][:, -1]


def quantised(model: nn.Module, rows: np.ndarray) -> None:
    """Write the perceptron in eight and sixteen bits. The expected answers are those of ONNX Runtime in this environment."""
    import onnxruntime

    def answer_of(path: str, rows: np.ndarray) -> np.ndarray:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"rows": rows})[0]

    with tempfile.TemporaryDirectory() as folder:
        plain = f"{folder}/plain.onnx"
        names = {"input_names": ["rows"], "output_names": ["scores"]}
        axes = {"rows": {0: "batch"}, "scores": {0: "batch"}}
        torch.onnx.export(model, torch.zeros(1, 8), plain, dynamo=False, opset_version=17, dynamic_axes=axes, **names)
        case = Case("quantised_dynamic", "ONNX Runtime's dynamic quantisation to INT8", "onnxruntime torch")
        quantize_dynamic(plain, case.path("model.onnx"))
        case.served({"rows": rows}, {"scores": answer_of(case.path("model.onnx"), rows)})
        case = Case("quantised_static", "ONNX Runtime's static quantisation to INT8, as QDQ", "onnxruntime torch")
        quantize_static(plain, case.path("model.onnx"), Reader(), quant_format=QuantFormat.QDQ)
        case.served({"rows": rows}, {"scores": answer_of(case.path("model.onnx"), rows)})
        case = Case("float16", "weights, inputs and outputs in FP16", "onnxruntime torch")
        path = case.path("model.onnx")
        onnx.save(convert_float_to_float16(onnx.load(plain)), path)
        half = rows.astype(np.float16)
        case.served({"rows": half}, {"scores": answer_of(path, half)}, tolerance=1e-2)


def torch_files() -> None:
    """Write PyTorch's own files: two are served unchanged, two contain only weights."""
    from safetensors.torch import save_file

    model, rows = perceptron(), random(3, 8)
    case = Case("torch_jit", "torch.jit.trace and save", "torch")
    torch.jit.trace(model, torch.zeros(2, 8)).save(case.path("model.pt"))
    case.served({"input": rows[:2]}, {"OUTPUT__0": answer(model, rows[:2])}, said="traced example")
    case = Case("torch_export", "torch.export.save", "torch")
    program = torch.export.export(model, (torch.zeros(2, 8),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # the source locations on the exporting machine
    torch.export.save(program, case.path("model.pt2"))
    case.served({"input": rows}, {"OUTPUT__0": answer(model, rows)})
    case = Case("torch_state_dict", "torch.save of a state_dict", "torch")
    torch.save(model.state_dict(), case.path("model.pt"))
    case.refused("torch.onnx.export")
    case = Case("safetensors", "weights of a model of transformers", "safetensors")
    save_file(model.state_dict(), case.path("model.safetensors"))
    case.refused("optimum")


def transformer_models() -> None:
    """Write tiny models from configurations, so that nothing is downloaded."""
    torch.manual_seed(2)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    bert = transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=50, max_position_embeddings=32, num_labels=2, **small)
    )
    ids = np.array([[2, 7, 9, 3], [2, 5, 3, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": np.zeros_like(ids)}
    optimum("hf_bert", "BERT for text classification, by optimum", bert, "text-classification", inputs, "logits")
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, max_position_embeddings=32, **small))
    mask = np.ones_like(ids)
    places = np.tile(np.arange(4), (2, 1))
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": places}
    optimum(
        "hf_llama", "Llama for text generation without a cache, by optimum", llama, "text-generation", inputs, "logits"
    )
    vit = transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=8, patch_size=4, num_labels=3, **small)
    )
    optimum(
        "hf_vit",
        "ViT for image classification, by optimum",
        vit,
        "image-classification",
        {"pixel_values": random(2, 3, 8, 8)},
        "logits",
    )
    minilm = transformers.BertModel(transformers.BertConfig(vocab_size=50, max_position_embeddings=32, **small))
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64), "token_type_ids": np.zeros_like(ids)}
    optimum(
        "hf_embeddings", "BERT for embeddings, by optimum", minilm, "feature-extraction", inputs, "last_hidden_state"
    )


def optimum(name: str, what: str, model, task: str, inputs: dict[str, np.ndarray], output: str) -> None:
    case = Case(name, what, HF)
    model = model.eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/model")
        main_export(f"{folder}/model", f"{folder}/onnx", task=task, do_validation=False)
        for path in sorted(Path(folder, "onnx").iterdir()):
            if path.suffix in (".onnx", ".onnx_data"):
                Path(case.path(path.name)).write_bytes(path.read_bytes())
    with torch.no_grad():
        found = model(**{name: torch.from_numpy(array) for name, array in inputs.items()})[output]
    case.served(inputs, {output: found.numpy()}, tolerance=1e-4)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable()
    exported()
    torch_files()
    transformer_models()

"""TorchScript -> ONNX: a scripted or traced module, by PyTorch's exporter for TorchScript; to .pt2 where torch can read it."""

import re
import warnings
from typing import Any

from recipe import Refused, Work, describe, main, opset
from torch_module import examples_of, flat, note_scores, save_pt2

PACKAGES = "torch onnxscript onnx numpy"


def convert(work: Work) -> None:
    """Convert the archive of the source."""
    import torch

    path = work.file(".pt", ".pth", ".ts", ".torchscript")
    try:
        model = torch.jit.load(path, map_location="cpu").eval()
    except RuntimeError as error:
        raise Refused(
            f"the file is no TorchScript archive ({_first(error)})", "save the module with torch.jit.save"
        ) from error
    names = [one.name for one in model.forward.schema.arguments if one.name != "self"]
    inputs = examples_of(work, names, _first_shape(model))
    arrays = tuple(torch.from_numpy(array) for array in inputs.values())
    try:
        with torch.no_grad():
            answers = flat(model(*arrays))
    except RuntimeError as error:
        shapes = {name: list(array.shape) for name, array in inputs.items()}
        raise Refused(
            f"the module cannot answer inputs of the shapes {shapes}", "give the right ones in the option 'inputs'"
        ) from error
    if work.options.get("format") == "pt2":
        inputs = save_pt2(work, _program(model, arrays, inputs), inputs, answers)
    else:
        _to_onnx(work, model, arrays, inputs, answers)
    work.write(inputs, answers)
    note_scores(work, answers)


def _first_shape(model: Any) -> dict[str, Any] | None:
    """Return the shape of one row by the first parameter with two dimensions (a linear layer) or four (a convolution)."""
    for name, value in model.state_dict().items():
        if name.endswith("weight") and value.dim() == 2:
            return {"shape": [value.shape[1]]}
        if name.endswith("weight") and value.dim() == 4:
            return {"shape": [value.shape[1], -1, -1]}
    return None


def _to_onnx(work: Work, model: Any, arrays: tuple[Any, ...], inputs: dict[str, Any], answers: dict[str, Any]) -> None:
    import torch

    path = work.path("model.onnx")
    given = work.options["inputs"]
    free: dict[str, Any] = {
        name: {0: "batch"} | {at + 1: f"{name}_{at + 1}" for at, size in enumerate(given[name]["shape"]) if size < 0}
        for name in inputs
    }
    free |= {name: {0: "batch"} for name in answers}
    number = opset(work, 17, 9)
    names = {"input_names": [*inputs], "output_names": [*answers]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, arrays, path, dynamo=False, dynamic_axes=free, opset_version=number, **names)
    except Exception as error:
        operator = re.search(r"operator '?([\w:]+)'?", str(error))
        said = f"the operator {operator[1]}" if operator else _first(error)
        raise Refused(
            f"PyTorch's exporter cannot write the module as ONNX: {said}",
            "serve the TorchScript file itself, or choose another opset",
        ) from error
    describe(work, path)


def _program(model: Any, arrays: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
    """Return the module as torch.export has it, by PyTorch's own converter."""
    try:
        from torch._export.converter import TS2EPConverter

        return TS2EPConverter(model, arrays, {}).convert()
    except Exception as error:
        raise Refused(
            f"PyTorch cannot read this TorchScript as torch.export does ({_first(error)})",
            "choose ONNX, serve the TorchScript file itself, or convert the module's class with its state_dict",
        ) from error


def _first(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:200]


if __name__ == "__main__":
    main(convert, PACKAGES)

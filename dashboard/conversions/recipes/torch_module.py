"""A PyTorch module -> ONNX or torch.export (.pt2): its class from an uploaded .py file with a state_dict, or a pickled module.

torch.export reads the module; the batch, and each dimension that the option `inputs` gives as -1, has any size. What it cannot
read is explained with the line of the module. Tracing (TorchScript's exporter) is offered then: it keeps the way that the
example took through branches and loops.
"""

import ast
import importlib.util
import inspect
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from recipe import Refused, Work, describe, main, opset

PACKAGES = "torch onnxscript onnx numpy"
BATCH = 3  # of the example: neither 0 nor 1, which torch.export takes for a constant
TRACING = "choose tracing, which keeps the way that one example takes through branches and loops, or change that line"


def convert(work: Work) -> None:
    """Convert the module of the source."""
    import torch

    model = load(work).eval().float()
    inputs = examples(work, model)
    with torch.no_grad():
        answers = flat(model(*(torch.from_numpy(array) for array in inputs.values())))
    write(work, model, inputs, answers)


# -- the module --------------------------------------------------------------------------------------------------------
def load(work: Work) -> Any:
    """Return the module: that of the pickle, or the class of the .py file with the weights of the state_dict."""
    import torch

    sys.path.insert(0, str(work.source))
    path = work.file(".pt", ".pth", ".bin", ".ckpt", ".safetensors")
    found = _weights(path)
    if isinstance(found, torch.nn.Module):
        return found
    state = state_dict(found)
    model = build(work, state)
    own = model.state_dict()
    wrong = {
        "are missing": [name for name in own if name not in state],
        "are unknown": [name for name in state if name not in own],
        "have another shape": [name for name in own if name in state and own[name].shape != state[name].shape],
    }
    if any(wrong.values()):
        said = "; ".join(f"{len(names)} {kind}, such as {names[0]}" for kind, names in wrong.items() if names)
        raise Refused(
            f"the weights do not fit the class {type(model).__name__}: {said}",
            "give the class the arguments it was trained with, in the option 'arguments'",
        )
    model.load_state_dict(state)
    return model


def _weights(path: Path) -> Any:
    import torch

    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception:
        return torch.load(
            path, map_location="cpu", weights_only=False
        )  # a whole module, or a checkpoint with other objects


def state_dict(found: Any) -> dict[str, Any]:
    """Return the state_dict in a file: the file itself, or the entry of a checkpoint, without prefixes of wrappers."""
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not found:
        raise Refused("the file has neither a module nor a state_dict", "save model.state_dict() with torch.save")
    for prefix in ("module.", "model.", "_orig_mod."):  # DataParallel, Lightning, torch.compile
        if all(name.startswith(prefix) for name in found):
            found = {name.removeprefix(prefix): value for name, value in found.items()}
    return found


def build(work: Work, state: dict[str, Any]) -> Any:
    """Make the module from the class in the .py file that the option `class` names, or the only one."""
    path = work.file(".py")
    classes = _classes(path)
    name = str(work.options.get("class") or "")
    if name and name not in classes:
        raise Refused(
            f"{path.name} has no torch.nn.Module '{name}'; it has {', '.join(classes) or 'none'}", "choose one of them"
        )
    if not name:
        outer = [one for one in classes if not _is_part(path, one)]
        if len(outer) != 1:
            raise Refused(f"{path.name} has {len(outer)} modules: {', '.join(outer)}", "name one in the option 'class'")
        (name,) = outer
    arguments = work.options.get("arguments") or {}
    try:
        return classes[name](**arguments) if isinstance(arguments, dict) else classes[name](*arguments)
    except TypeError as error:
        wanted = inspect.signature(classes[name].__init__)
        raise Refused(
            f"{name}{wanted} cannot be made: {error}", "give its arguments as JSON in the option 'arguments'"
        ) from error


def _classes(path: Path) -> dict[str, Any]:
    import torch

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == path.stem
    }


def _is_part(path: Path, name: str) -> bool:
    """Return whether another class of the file makes or extends this class."""
    return any(
        isinstance(node, ast.Name) and node.id == name
        for outer in ast.parse(path.read_text()).body
        if isinstance(outer, ast.ClassDef) and outer.name != name
        for node in ast.walk(outer)
    )


# -- its inputs --------------------------------------------------------------------------------------------------------
def examples(work: Work, model: Any) -> dict[str, np.ndarray]:
    """Return sample inputs by the names of forward's arguments. The module's first layer tells a shape that is not given."""
    names = [
        name
        for name, one in inspect.signature(model.forward).parameters.items()
        if one.default is inspect.Parameter.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    return examples_of(work, names or ["input"], _first_layer(model))


def examples_of(work: Work, names: list[str], shape: dict[str, Any] | None) -> dict[str, np.ndarray]:
    """Return sample inputs of BATCH rows, by name. shape: that of the only input, if the option `inputs` does not give it.

    The option has a shape and a datatype for each, such as {"image": {"shape": [3, 224, 224]}}, without the batch; -1 is any
    size.
    """
    given = work.options.get("inputs") or ({names[0]: shape} if len(names) == 1 and shape else {})
    if list(given) != names:
        raise Refused(
            f"forward takes {', '.join(names) or 'no arguments'}, and their shapes are not known",
            'give them in the option "inputs", such as {"image": {"shape": [3, 224, 224], "datatype": "FP32"}}',
        )
    work.options["inputs"] = given
    return {name: _sample(work, one) for name, one in given.items()}


def _first_layer(model: Any) -> dict[str, Any] | None:
    import torch

    for layer in model.modules():
        match layer:
            case torch.nn.Linear():
                return {"shape": [layer.in_features]}
            case torch.nn.Conv2d():
                return {"shape": [layer.in_channels, -1, -1]}
            case torch.nn.Conv1d():
                return {"shape": [layer.in_channels, -1]}
            case torch.nn.Embedding():
                return {"shape": [-1], "datatype": "INT64", "below": layer.num_embeddings}
            case torch.nn.RNNBase():
                return {"shape": [-1, layer.input_size]} if layer.batch_first else None
    return None


_SIZES = (24, 20, 16)  # of dimensions of any size


def _sample(work: Work, one: dict[str, Any]) -> np.ndarray:
    shape = [BATCH, *(size if size > 0 else _SIZES[at % 3] for at, size in enumerate(one["shape"]))]
    datatype = one.get("datatype", "FP32")
    if datatype in ("INT64", "INT32"):
        return work.random.integers(0, one.get("below", 10), shape).astype(datatype.lower())
    if datatype == "BOOL":
        return work.random.integers(0, 2, shape).astype(bool)
    if datatype not in ("FP32", "FP64"):
        raise Refused(f"datatype '{datatype}' is unknown here", "choose FP32, FP64, INT64, INT32 or BOOL")
    return work.random.standard_normal(shape).astype({"FP32": "float32", "FP64": "float64"}[datatype])


def flat(found: Any) -> dict[str, np.ndarray]:
    """Return the outputs of a module by name: those of a dict, else output, or output_0 and so on."""
    import torch

    if isinstance(found, torch.Tensor):
        return {"output": found.numpy()}
    items = found.items() if isinstance(found, dict) else ((f"output_{at}", one) for at, one in enumerate(found))
    answers = {name: value.numpy() for name, value in items if isinstance(value, torch.Tensor)}
    if not answers:
        raise Refused(
            f"forward returns {type(found).__name__} without tensors", "return a tensor, a tuple or a dict of them"
        )
    return answers


# -- the new file ------------------------------------------------------------------------------------------------------
def write(work: Work, model: Any, inputs: dict[str, np.ndarray], answers: dict[str, np.ndarray]) -> None:
    """Write the model as the option `format` says, with samples and answers."""
    import torch

    arrays = tuple(torch.from_numpy(array) for array in inputs.values())
    if work.options.get("tracing"):
        work.warn("the model was traced: branches and loops keep the way that one example took, for every input")
        work.note(
            if_different="write the branches without Python's if, as with torch.where, and convert without tracing"
        )
        _trace(work, model, arrays, inputs, answers)
    else:
        program = exported(work, model, arrays, inputs)
        if work.options.get("format") == "pt2":
            inputs = save_pt2(work, program, inputs, answers)
        else:
            _to_onnx(work, program, inputs, answers)
    work.write(inputs, answers)
    note_scores(work, answers)


def note_scores(work: Work, answers: dict[str, np.ndarray]) -> None:
    """Take the only output of a module for scores of classes, if it has a number for each of several."""
    work.note(
        scores=[name for name, array in answers.items() if len(answers) == 1 and array.ndim == 2 and array.shape[1] > 1]
    )


def shapes(work: Work, inputs: dict[str, np.ndarray]) -> tuple[dict[int, Any], ...]:
    """Return the dimensions of each input that have any size."""
    import torch

    given, free = work.options.get("inputs", {}), torch.export.Dim.DYNAMIC
    return tuple(
        {
            0: torch.export.Dim("batch"),
            **{at + 1: free for at, size in enumerate(given.get(name, {}).get("shape", [])) if size < 0},
        }
        for name in inputs
    )


def exported(work: Work, model: Any, arrays: tuple[Any, ...], inputs: dict[str, np.ndarray]) -> Any:
    """Return the module as torch.export reads it. Raises Refused with the line that it cannot read."""
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(model, arrays, dynamic_shapes=shapes(work, inputs))
    except Exception as error:
        place = line_of(error, work.source)
        if "Constraints violated" in str(error) or "ConstraintViolation" in type(error).__name__:
            fixed = re.findall(r"(?:L\['(\w+)'\]|\b(\w+) = )", str(error))
            said = (
                "the module does not take batches of any size"
                if fixed or "batch" in str(error)
                else "a dimension is fixed"
            )
            raise Refused(f"{said}{place}", "make forward work for any first dimension, or " + TRACING) from error
        words = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Refused(f"the exporter torch.export cannot read the module{place}: {words[:300]}", TRACING) from error


def line_of(error: BaseException, source: Path) -> str:
    """Return the file, number and text of the module's line where an exporter stopped; "" if it lies elsewhere."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename.startswith(str(source))]
    if frames:
        return f" at line {frames[-1].lineno} of {Path(frames[-1].filename).name}, `{frames[-1].line}`"
    found = re.findall(rf'File "({re.escape(str(source))}[^"]*)", line (\d+)', str(error))
    if not found:
        return ""
    name, number = found[-1]
    text = Path(name).read_text().splitlines()[int(number) - 1].strip()
    return f" at line {number} of {Path(name).name}, `{text}`"


def _to_onnx(work: Work, program: Any, inputs: dict[str, np.ndarray], answers: dict[str, np.ndarray]) -> None:
    import torch

    path = work.path("model.onnx")
    torch.onnx.export(
        program,
        f=path,
        dynamo=True,
        input_names=[*inputs],
        output_names=[*answers],
        opset_version=opset(work, 20, 18),
        external_data=False,
        verbose=False,
    )
    describe(work, path)


def _trace(
    work: Work, model: Any, arrays: tuple[Any, ...], inputs: dict[str, np.ndarray], answers: dict[str, np.ndarray]
) -> None:
    """Write model.onnx by tracing.

    The example has other numbers than the samples, so that a way that depends on them shows as a difference.
    """
    import torch

    arrays = tuple(-array if array.is_floating_point() else array for array in arrays)
    path = work.path("model.onnx")
    free = {
        name: {at: f"{name}_{at}" if at else "batch" for at in one}
        for name, one in zip(inputs, shapes(work, inputs), strict=True)
    }
    free |= {name: {0: "batch"} for name in answers}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.onnx.export(
            model,
            arrays,
            path,
            dynamo=False,
            input_names=[*inputs],
            output_names=[*answers],
            dynamic_axes=free,
            opset_version=opset(work, 17, 9),
        )
    for one in said:
        if one.category.__name__ == "TracerWarning" and one.filename.startswith(str(work.source)):
            work.warn(
                f"line {one.lineno} of {Path(one.filename).name} depends on its input, and keeps what the example gave"
            )
    describe(work, path)


def save_pt2(
    work: Work, program: Any, inputs: dict[str, np.ndarray], answers: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Write model.pt2. Return the sample inputs by the names that it has, which are those of the program's arguments."""
    import torch

    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    torch.export.save(program, work.path("model.pt2"))
    free = shapes(work, inputs)
    named = dict(zip(program.graph_signature.user_inputs, inputs.values(), strict=True))
    kinds = {
        "float32": "FP32",
        "float64": "FP64",
        "float16": "FP16",
        "int64": "INT64",
        "int32": "INT32",
        "bool": "BOOL",
    }
    work.note(
        format="pt2",
        inputs=[
            {
                "name": name,
                "datatype": kinds[array.dtype.name],
                "shape": [-1 if at in one else size for at, size in enumerate(array.shape)],
            }
            for (name, array), one in zip(named.items(), free, strict=True)
        ],
        outputs=[
            {"name": name, "datatype": kinds[array.dtype.name], "shape": [-1, *array.shape[1:]]}
            for name, array in answers.items()
        ],
    )
    return named


if __name__ == "__main__":
    main(convert, PACKAGES)

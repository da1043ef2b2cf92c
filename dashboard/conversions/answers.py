"""`python -m dashboard.conversions.answers TARGET`: asks a converted model with the product's own runtime.

TARGET is the folder that a recipe wrote. The runtime is ONNX Runtime, PyTorch, or the server's TensorRT backend. The inputs are
the recipe's samples.npz; the answers are written as converted.npz, and the comparison with the source's as verdict.json. The
process is separate, because a model file can crash its runtime, and a small file of arrays can take any memory. It ends with
status 1 and one sentence in its last line of errors.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from dashboard.conversions.check import CONVERTED, VERDICT, check

Arrays = dict[str, np.ndarray]
Run = Callable[[Arrays], list[Any]]


def main() -> None:
    target = Path(sys.argv[1])
    report = json.loads((target / "report.json").read_text())
    inputs = _read(target / "samples.npz")
    if "ensemble" in report:
        inputs = _of_step(target / report["ensemble"]["step"], inputs)
    try:
        run, names = {"pt2": _pt2, "plan": _plan}.get(report.get("format", ""), _onnx)(target, report)
        found = run(inputs)
        _try_one_row(run, inputs, found)
    except Exception as error:
        sys.exit(f"the server's own runtime cannot run the converted model: {' '.join(str(error).split())[:400]}")
    arrays = {name: _plain(array) for name, array in zip(names, found, strict=True)}
    np.savez(target / CONVERTED, **arrays)  # type: ignore[arg-type]
    (target / VERDICT).write_text(json.dumps(check(target, report).as_json()))


def _onnx(target: Path, report: dict[str, Any]) -> tuple[Run, list[str]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(target / "model" / "model.onnx", options, providers=["CPUExecutionProvider"])
    wanted = [one.name for one in session.get_inputs()]
    names = [one.name for one in session.get_outputs()]
    return lambda inputs: session.run(names, {name: _objects(inputs[name]) for name in wanted}), names


def _pt2(target: Path, report: dict[str, Any]) -> tuple[Run, list[str]]:
    import torch

    program = torch.export.load(target / "model" / "model.pt2").module()

    def run(inputs: Arrays) -> list[Any]:
        with torch.no_grad():
            found = program(*(torch.from_numpy(inputs[one["name"]]) for one in report["inputs"]))
        tensors = (
            [found] if isinstance(found, torch.Tensor) else list(found.values() if isinstance(found, dict) else found)
        )
        return [tensor.numpy() for tensor in tensors]

    return run, [one["name"] for one in report["outputs"]]


def _plan(target: Path, report: dict[str, Any]) -> tuple[Run, list[str]]:
    """Ask the server's own backend, on the first GPU."""
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from serving.backends.base.backend import ModelSpec
    from serving.backends.tensorrt.backend import TensorrtBackend
    from serving.core.devices import Device

    plan = target / "model" / "model.plan"
    config = ModelConfig(name="model", backend="tensorrt", default_model_filename=plan.name)
    TensorrtBackend.complete_config(config, plan.parent)
    backend = TensorrtBackend(ModelSpec(config.name, 1, config, plan.parent, plan))
    backend.load()
    instance = backend.create_instance(Device("gpu", 0), "model_0")
    names = [one.name for one in config.output]
    return lambda inputs: list(map(instance.run(inputs, names).get, names)), names


def _try_one_row(run: Run, inputs: Arrays, found: list[Any]) -> None:
    """Raise ValueError if a model that answered a batch cannot answer its first row alone: an exporter fixed the batch."""
    rows = {len(array) for array in inputs.values() if array.ndim}
    if len(rows) != 1 or rows == {1} or any(not np.ndim(array) or {len(array)} != rows for array in found):
        return
    try:
        alone = run({name: array[:1] for name, array in inputs.items()})
    except Exception as error:
        raise ValueError(f"it takes batches of {rows.pop()} rows alone, and cannot be batched ({error})") from error
    if any(len(array) != 1 for array in alone):
        raise ValueError(f"it answers {rows.pop()} rows whatever the request has")


def _of_step(folder: Path, inputs: Arrays) -> Arrays:
    """Return the answers of a model in Python, such as a tokenizer. Triton's module for it is the least that it needs."""
    arrays = {name: _objects(array, encode=True) for name, array in inputs.items()}
    triton = ModuleType("triton_python_backend_utils")
    vars(triton).update(
        Tensor=lambda name, array: (name, array),
        InferenceResponse=lambda tensors: dict(tensors),
        get_input_tensor_by_name=lambda request, name: SimpleNamespace(as_numpy=lambda: request[name]),
    )
    sys.modules[triton.__name__] = triton
    scope: dict[str, Any] = {"__name__": "model"}
    exec(compile((folder / "model.py").read_text(), str(folder / "model.py"), "exec"), scope)
    model = scope["TritonPythonModel"]()
    model.initialize({"model_repository": str(folder.parent), "model_version": folder.name})
    answer: Arrays
    [answer] = model.execute([arrays])
    return answer


def _read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _objects(array: np.ndarray, *, encode: bool = False) -> np.ndarray:
    """Return texts as objects, which ONNX Runtime takes: a .npz file has them with a fixed length."""
    if array.dtype.kind not in "US":
        return array
    objects: np.ndarray = array.astype(object)
    if encode and array.dtype.kind == "U":
        objects = np.array([text.encode() for text in array.flat], object).reshape(array.shape)
    return objects


def _plain(array: Any) -> np.ndarray:
    array = np.asarray(array)
    plain: np.ndarray = array.astype(str) if array.dtype.kind == "O" else array
    return plain


if __name__ == "__main__":
    main()

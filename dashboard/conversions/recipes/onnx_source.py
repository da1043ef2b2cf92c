"""An ONNX model as a source: read with its weights, asked with the product's own ONNX Runtime on sample inputs."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from recipe import Refused, Work, tensor, texts

BATCH = 8
_SIZES = {1: 16, 2: 32, 3: 32}  # of the second, third and fourth dimension, if it has any size
_DTYPES = {"FP32": "float32", "FP64": "float64", "FP16": "float16", "BOOL": "bool"}


def checked(work: Work) -> Any:
    """Return the model of the source, with its weights in it. Raises Refused if it is damaged."""
    import onnx

    path = work.file(".onnx")
    try:
        with _without_links(work, path) as single:
            return onnx.load(single)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise Refused(
            f"the weights of {path.name} are missing ({error})", "add what the exporter wrote beside it"
        ) from error
    except Exception as error:
        raise Refused(f"{path.name} is damaged ({error})", "upload the whole file") from error


@contextmanager
def _without_links(work: Work, path: Path) -> Iterator[Path]:
    """Give a path of a model at which onnx reads its weights: of a copy, if the files have further names, as an upload's have.

    onnx refuses weights in a file beside the model that has several hard links.
    """
    if path.stat().st_nlink == 1 or len(work.files()) == 1:
        yield path
        return
    folder = work.target / "copy"
    shutil.copytree(path.parent, folder)
    yield folder / path.name
    shutil.rmtree(folder)


def answered(work: Work, model: Any) -> None:
    """Write sample inputs, and the model's own answers to them."""
    import onnxruntime

    inner = {one.name for one in model.graph.initializer}
    inputs = [tensor(value) for value in model.graph.input if value.name not in inner]
    samples = {one["name"]: _sample(work, one) for one in inputs}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    path = work.file(".onnx")
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found = session.run(None, samples)
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise Refused(
            f"ONNX Runtime cannot answer sample inputs with the model: {words}",
            'give the sizes of its inputs in the option "inputs", such as {"tokens": {"shape": [8, 64], "below": 1000}}',
        ) from error
    names = [one.name for one in session.get_outputs()]
    work.write(samples, dict(zip(names, found, strict=True)))
    floats = [
        name
        for name, array in zip(names, found, strict=True)
        if getattr(array, "dtype", None) is not None and array.dtype.kind == "f"
    ]
    work.note(
        scores=[
            name
            for name, array in zip(names, found, strict=True)
            if floats == [name] and array.ndim == 2 and array.shape[1] > 1
        ]
    )


def _sample(work: Work, one: dict[str, Any]) -> np.ndarray:
    given = (work.options.get("inputs") or {}).get(one["name"], {})
    shape = given.get("shape") or [size if size > 0 else _SIZES.get(at, BATCH) for at, size in enumerate(one["shape"])]
    kind = one["datatype"]
    if kind == "BYTES":
        return texts(int(np.prod(shape)), ["some", "words"], work.random).reshape(shape)
    if kind == "BOOL" or "mask" in one["name"]:
        return np.ones(shape, _DTYPES.get(kind, kind.lower()))
    if kind in _DTYPES:
        return work.random.standard_normal(shape).astype(_DTYPES[kind])
    below = 2 if "type" in one["name"] else given.get("below", 16)
    return work.random.integers(0, below, shape).astype(kind.lower())

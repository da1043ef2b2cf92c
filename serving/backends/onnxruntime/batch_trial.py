"""Tests whether a model that was exported for one row gives the same answers for several rows in one batch.

Random rows run through the model of the file, one by one, and then together through the model with a variable first dimension.
A constant shape inside the model, or an operator that mixes rows, causes an error or another answer.
"""

import math
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort

from serving.backends.onnxruntime.backend import check_loads
from serving.backends.onnxruntime.onnx_file import OnnxModel
from serving.core.datatypes import DATATYPES, Tensor
from serving.core.errors import ServingError

_ROWS = (2, 3)
_VARIABLE_SIZE = 4  # the size for dimensions that the file leaves open
_MAX_ELEMENTS = 50_000_000  # the most elements of an input with one row
_MAX_SECONDS = 30.0
_TOLERANCE = 1e-3


def answers_rows_alike(model: OnnxModel, path: Path) -> bool:
    """Return whether the answers are the same, or False if that cannot be tested. `model` keeps the variable first dimension
    that the test gives it."""
    if not all(_can_be_made(tensor.datatype, tensor.shape) for tensor in model.inputs):
        return False
    options = ort.RunOptions()
    options.log_severity_level = 4
    clock = threading.Timer(_MAX_SECONDS, setattr, (options, "terminate", True))
    try:
        alone = check_loads(model, path)
        model.adapt_batch()
        together = check_loads(model, path)
        clock.start()
        return all(_alike(_made_up(model, rows), rows, alone, together, options) for rows in _ROWS)
    except ServingError:
        return False
    except Exception:  # ONNX Runtime raises its own types
        return False
    finally:
        clock.cancel()


def _can_be_made(datatype: str, shape: tuple[int, ...] | None) -> bool:
    known = bool(shape) and datatype in DATATYPES and datatype not in ("BF16", "BYTES")
    return known and math.prod(abs(size) for size in shape or ()) <= _MAX_ELEMENTS


def _made_up(model: OnnxModel, rows: int) -> dict[str, Tensor]:
    """Return random inputs of small numbers, so that the numbers are valid indexes too."""
    random = np.random.default_rng(rows)
    found: dict[str, Tensor] = {}
    for tensor in model.inputs:
        if tensor.optional or tensor.shape is None:
            continue
        shape = (rows, *(_VARIABLE_SIZE if size < 0 else size for size in tensor.shape[1:]))
        dtype = DATATYPES[tensor.datatype].dtype
        values = random.standard_normal(shape) if dtype.kind == "f" else random.integers(0, 2, shape)
        found[tensor.name] = values.astype(dtype)
    return found


def _alike(
    inputs: dict[str, Tensor],
    rows: int,
    alone: ort.InferenceSession,
    together: ort.InferenceSession,
    options: ort.RunOptions,
) -> bool:
    each = [
        alone.run(None, {name: array[row : row + 1] for name, array in inputs.items()}, options) for row in range(rows)
    ]
    found = together.run(None, inputs, options)
    return all(_same(np.concatenate(parts), whole) for parts, whole in zip(zip(*each, strict=True), found, strict=True))


def _same(expected: Tensor, found: Tensor) -> bool:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return False
    if expected.dtype.kind not in "fc":
        return bool(np.array_equal(expected, found))
    return bool(np.allclose(expected, found, _TOLERANCE, _TOLERANCE, equal_nan=True))

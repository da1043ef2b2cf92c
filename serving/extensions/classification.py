"""The classification extension: returns the highest values of an output with their labels, and reads label files.

Source: Triton, docs/protocol/extension_classification.md; values are formatted with C's "%f" and "%d", as in Triton.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.class_names import class_names
from repository.core.addresses import leads_into
from serving.core.datatypes import Tensor, datatype_of
from serving.core.device_tensor import host_array
from serving.core.errors import invalid

Labels = Mapping[str, Sequence[str]]  # output -> the names of its classes, by index

MAX_ELEMENTS = 1_000_000  # the most elements of a classified output
MAX_LABEL_FILE = 64 << 20  # the most bytes of a label file


def top_classes(name: str, output: Tensor, count: int, labels: Sequence[str], batched: bool) -> Tensor:
    """Return the `count` highest values of each row as "value:index[:label]" bytes: shape [batch, count], or [count] without a
    batch dimension. Equal values keep the order of their indexes. NaN ranks lowest. Raises INVALID_ARG for BYTES and BOOL."""
    output = host_array(output)
    row = datatype_of(output)
    if row.name in ("BYTES", "BOOL"):
        raise invalid(f"class result not available for output '{name}' due to unsupported type '{row.name}'")
    if output.size > MAX_ELEMENTS:
        raise invalid(f"output '{name}' has {output.size} elements; at most {MAX_ELEMENTS} can be classified")
    rows = len(output) if batched and output.ndim else 1
    width = math.prod(output.shape[1:]) if batched and output.ndim else output.size
    count = min(count, width)
    values = output.reshape(rows, width)
    found = np.empty((rows, count), np.object_)
    for number in range(rows):
        for place, index in enumerate(_highest(values[number], count)):
            value = values[number, index]
            text = f"{int(value) if value.dtype.kind in 'iu' else f'{float(value):f}'}:{index}"
            found[number, place] = (f"{text}:{labels[index]}" if index < len(labels) else text).encode()
    return found if batched else found.reshape(count)


def _highest(values: Tensor, count: int) -> list[int]:
    """Return the indexes of the `count` highest values, in descending order. Only the highest values are sorted."""
    if values.dtype.kind not in "iuf":
        values = values.astype(np.float32)  # BF16, which numpy cannot sort
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), -np.inf, values)
    chosen = np.arange(len(values))
    if 0 < count < len(values):
        threshold = np.partition(values, len(values) - count)[len(values) - count]
        chosen = np.flatnonzero(values >= threshold)
    # Sort by descending value, then by index. Values are not negated, because they may be unsigned.
    order = np.argsort(values[chosen][::-1], kind="stable")[::-1]
    ranked: list[int] = (len(chosen) - 1 - order)[:count].tolist()
    return [int(chosen[place]) for place in ranked]


def read_labels(config: ModelConfig, model_dir: Path) -> dict[str, list[str]]:
    """Return the labels by output name: the lines of `label_filename` in the model's folder, or else the labels of
    slipway.class_names. Raises INVALID_ARG if a label file cannot be read."""
    return class_names(config) | {
        output.name: _read(output.name, model_dir, output.label_filename)
        for output in config.output
        if output.label_filename
    }


def inherited_labels(config: ModelConfig, labels_of: Callable[[str, int], Labels]) -> dict[str, Sequence[str]]:
    """Return the labels of an ensemble's outputs. Each output has the labels of the step that produces it.

    labels_of: (model name, version) of a step -> the labels of its model."""
    found: dict[str, Sequence[str]] = {}
    for step in config.ensemble_scheduling.step:
        labels = labels_of(step.model_name, step.model_version)
        found |= {value: labels[key] for key, value in step.output_map.items() if labels.get(key)}
    return found


def _read(output: str, model_dir: Path, filename: str) -> list[str]:
    path = model_dir / filename
    if not leads_into(path, model_dir):
        raise invalid(f"label_filename of output '{output}' leaves the model's folder")
    try:
        if path.stat().st_size > MAX_LABEL_FILE:
            raise invalid(f"label_filename of output '{output}': expected at most {MAX_LABEL_FILE} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise invalid(f"label_filename '{filename}' of output '{output}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise invalid(f"label_filename '{filename}' of output '{output}' is not UTF-8") from None

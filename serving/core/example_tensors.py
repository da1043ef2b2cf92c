"""Converts tensors of examples (repository.core.tensors) to arrays, and arrays to tensors of examples."""

from collections.abc import Sequence

import numpy as np

from repository.core.tensors import Element
from repository.core.tensors import Tensor as ExampleTensor
from serving.core.datatypes import DATATYPES, Tensor, datatype_of


def to_array(tensor: ExampleTensor) -> Tensor:
    row = DATATYPES[tensor.datatype]
    if row.name == "BYTES":
        array = np.empty(len(tensor.elements), np.object_)
        array[:] = tensor.elements
    else:
        array = np.array(tensor.elements, row.dtype)
    return array.reshape(tensor.shape)


def from_array(name: str, array: Tensor) -> ExampleTensor:
    """Return an array on the host as the tensor of an example."""
    row = datatype_of(array)
    flat = array.reshape(-1)
    elements: Sequence[Element]
    if row.name == "BYTES":
        elements = [one if isinstance(one, bytes) else str(one).encode() for one in flat.tolist()]
    elif row.name in ("FP16", "BF16"):
        elements = flat.astype(np.float32).tolist()
    else:
        elements = flat.tolist()
    return ExampleTensor(name, row.name, array.shape, elements)

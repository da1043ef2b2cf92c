"""Writes tensors for a trace file: {"id": 1, "activity": "TENSOR_QUEUE_INPUT", "tensor": {"name", "data", "shape", "dtype"}}.

As in Triton, `data` and `shape` are texts of numbers with commas between them, and strings are in quotes. Unlike in Triton,
FP16 and BF16 are written as numbers, and large tensors are truncated: `data` and `shape` then have only the first elements, and
`whole_shape` has the full shape. Source: Triton, docs/user_guide/trace.md.
"""

import math
from collections.abc import Mapping

import numpy as np
import orjson
from numpy.typing import NDArray

from serving.core.datatypes import Tensor, datatype_of
from serving.core.device_tensor import host_array

MAX_ELEMENTS = 16_384
MAX_TEXT = 64 << 10  # bytes of all elements of a BYTES tensor


def tensor_rows(identifier: int, activity: str, tensors: Mapping[str, Tensor]) -> list[bytes]:
    return [
        orjson.dumps({"id": identifier, "activity": activity, "tensor": describe(name, tensor)})
        for name, tensor in tensors.items()
    ]


def describe(name: str, tensor: Tensor) -> dict[str, str]:
    count = math.prod(tensor.shape)
    array = host_array(_first_elements(tensor))
    dtype = datatype_of(array).name
    if dtype == "BYTES":
        texts = _texts(array)
        taken, data = len(texts), ",".join(texts)
    else:
        taken, data = len(array), _numbers(array)
    row = {"name": name, "data": data, "shape": _commas(tensor.shape if taken == count else (taken,)), "dtype": dtype}
    return row if taken == count else row | {"whole_shape": _commas(tensor.shape)}


def _first_elements(tensor: Tensor) -> Tensor:
    """Return the first MAX_ELEMENTS elements. No others are copied, whatever the strides."""
    return (tensor.flat if isinstance(tensor, np.ndarray) else tensor.reshape(-1))[:MAX_ELEMENTS]


def _numbers(array: NDArray[np.generic]) -> str:
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    elif array.dtype.kind not in "iuf":
        array = array.astype(np.float32)  # BF16
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return ",".join(map(str, array.tolist()))  # JSON has no nan
    return orjson.dumps(np.ascontiguousarray(array), option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].decode()


def _texts(array: NDArray[np.generic]) -> list[str]:
    """Return as many texts as fit, in quotes. Inner quotes are doubled, and bytes that are not UTF-8 are shown as \\x.."""
    texts = []
    left = MAX_TEXT
    for element in array.tolist():
        raw = element if isinstance(element, bytes) else str(element).encode("utf-8", "replace")
        left -= len(raw)
        if left < 0:
            break
        text = raw.decode("utf-8", "backslashreplace").replace('"', '""')
        texts.append(f'"{text}"')
    return texts


def _commas(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))

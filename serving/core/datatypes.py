"""The KServe V2 datatypes and their numpy, configuration and byte forms.

Source: KServe V2 "Tensor Data Types" and Triton's binary tensor data extension. FP16, BF16 and BYTES exist only in Triton.
"""

import struct
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2 as mc
from typing_extensions import Buffer

from serving.core.errors import invalid

# A tensor of any datatype: a numpy array on the host, or a serving.core.device_tensor.DeviceTensor on a GPU.
# Inputs may be on the host or on a GPU. Outputs are on the host unless the request has `device_outputs`.
Tensor = NDArray[Any]
Dtype = np.dtype[Any]
_LENGTH = struct.Struct("<I")  # the length before each BYTES element
COPIED_BYTES = 64 << 10  # outputs up to this size are copied, because that is cheaper than a view


class Datatype(NamedTuple):
    name: str  # the name on the wire, such as "FP32"
    dtype: Dtype  # object for BYTES: each element is `bytes`
    itemsize: int  # bytes on the wire; 0 for BYTES, which is length-prefixed
    config: int  # the ModelConfig enum value, such as mc.TYPE_FP32
    contents: str  # the gRPC InferTensorContents field; empty where the protocol has none


_ROWS = [
    ("BOOL", np.bool_, 1, mc.TYPE_BOOL, "bool_contents"),
    ("UINT8", np.uint8, 1, mc.TYPE_UINT8, "uint_contents"),
    ("UINT16", np.uint16, 2, mc.TYPE_UINT16, "uint_contents"),
    ("UINT32", np.uint32, 4, mc.TYPE_UINT32, "uint_contents"),
    ("UINT64", np.uint64, 8, mc.TYPE_UINT64, "uint64_contents"),
    ("INT8", np.int8, 1, mc.TYPE_INT8, "int_contents"),
    ("INT16", np.int16, 2, mc.TYPE_INT16, "int_contents"),
    ("INT32", np.int32, 4, mc.TYPE_INT32, "int_contents"),
    ("INT64", np.int64, 8, mc.TYPE_INT64, "int64_contents"),
    ("FP16", np.float16, 2, mc.TYPE_FP16, ""),
    ("BF16", ml_dtypes.bfloat16, 2, mc.TYPE_BF16, ""),
    ("FP32", np.float32, 4, mc.TYPE_FP32, "fp32_contents"),
    ("FP64", np.float64, 8, mc.TYPE_FP64, "fp64_contents"),
    ("BYTES", np.object_, 0, mc.TYPE_STRING, "bytes_contents"),
]

DATATYPES: dict[str, Datatype] = {
    name: Datatype(name, np.dtype(dtype), size, config, contents) for name, dtype, size, config, contents in _ROWS
}
BY_CONFIG: dict[int, Datatype] = {row.config: row for row in DATATYPES.values()}
BY_DTYPE: dict[Dtype, Datatype] = {row.dtype: row for row in DATATYPES.values()}


def datatype(name: object) -> Datatype:
    """Return the row of a datatype's name in the protocol. Raises INVALID_ARG if the name is unknown or not a string."""
    row = DATATYPES.get(name) if isinstance(name, str) else None
    if row is None:
        raise invalid(f"unknown datatype '{name}'; expected one of {', '.join(DATATYPES)}")
    return row


def datatype_of(tensor: Tensor) -> Datatype:
    """Return the row of a tensor's dtype: BYTES for numpy strings of kind S, U or O. Raises INVALID_ARG for other dtypes."""
    row = BY_DTYPE.get(tensor.dtype)
    if row is not None:
        return row
    if tensor.dtype.kind in "SU":
        return DATATYPES["BYTES"]
    raise invalid(f"numpy dtype '{tensor.dtype}' has no KServe V2 datatype")


def serialize_bytes(tensor: Tensor) -> bytes:
    """Return BYTES elements in row-major order, each preceded by its length as a little-endian uint32."""
    parts: list[bytes] = []
    for element in tensor.ravel():
        value = element if isinstance(element, bytes) else str(element).encode()
        parts.append(len(value).to_bytes(4, "little"))
        parts.append(value)
    return b"".join(parts)


def raw_bytes(tensor: Tensor) -> bytes | memoryview:
    """Return a host tensor's data, little-endian and row-major. Each BYTES element is preceded by its length. A large
    contiguous tensor is not copied: the result is a view of its bytes."""
    if tensor.dtype.kind in "OSU":
        return serialize_bytes(tensor)
    if tensor.nbytes <= COPIED_BYTES or not tensor.flags.c_contiguous:
        return tensor.tobytes()
    return tensor.reshape(-1).view(np.uint8).data


def deserialize_bytes(buffer: Buffer, count: int) -> Tensor:
    """Return the elements that `serialize_bytes` has written, as objects of shape [count].

    Raises INVALID_ARG unless `buffer` holds exactly `count` elements. The array is allocated only if `buffer` is long enough,
    so a false shape of huge size costs no memory.
    """
    view = memoryview(buffer)
    if view.format != "B":
        view = view.cast("B")
    total = len(view)
    if count * 4 > total:
        raise invalid(f"expected {count} string elements, but {total} bytes cannot hold them")
    result = np.empty(count, dtype=np.object_)
    offset = 0
    for index in range(count):
        if offset + 4 > total:
            raise invalid(f"expected {count} string elements, but the data ends after {index}")
        (length,) = _LENGTH.unpack_from(view, offset)
        offset += 4
        if length > total - offset:
            raise invalid(f"string element {index} claims {length} bytes, but {total - offset} remain")
        result[index] = bytes(view[offset : offset + length])
        offset += length
    if offset != total:
        raise invalid(f"expected {count} string elements, but {total - offset} bytes follow them")
    return result

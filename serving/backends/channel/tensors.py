"""The layout of tensors in a segment of shared memory, and the V2 protocol's datatypes for numpy.

A `TensorRow` (see messages.py) describes the place of one tensor. BYTES tensors have the protocol's binary form: the elements
in row-major order, each preceded by its length as a little-endian uint32 (Open Inference Protocol, binary tensor data
extension).
"""

import mmap
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.backends.channel.messages import TensorRow

Array = NDArray[Any]
DType = np.dtype[Any]
Memory = mmap.mmap | memoryview | bytes | bytearray
"""The bytes of a segment, or a copy of them."""

try:
    from ml_dtypes import bfloat16

    BFLOAT16: DType | None = np.dtype(bfloat16)
except ImportError:  # a model's own Python may lack ml_dtypes; as in Triton, BF16 then needs DLPack
    BFLOAT16 = None

ALIGNMENT = 64
_JOINED_BYTES = 16 << 10  # up to this size, joining length and value is faster than writing them separately
_PLAIN_BYTES = 64 << 10  # up to this size, a slice assignment is faster than numpy


class Datatype(NamedTuple):
    name: str
    dtype: DType  # object for BYTES; uint16 for BF16
    number: int  # TRITONSERVER_DataType


TYPES: dict[str, Datatype] = {
    name: Datatype(name, np.dtype(dtype), number)
    for number, (name, dtype) in enumerate(
        [
            ("BOOL", np.bool_),
            ("UINT8", np.uint8),
            ("UINT16", np.uint16),
            ("UINT32", np.uint32),
            ("UINT64", np.uint64),
            ("INT8", np.int8),
            ("INT16", np.int16),
            ("INT32", np.int32),
            ("INT64", np.int64),
            ("FP16", np.float16),
            ("FP32", np.float32),
            ("FP64", np.float64),
            ("BYTES", np.object_),
            ("BF16", np.uint16),
        ],
        start=1,
    )
}
BY_DTYPE: dict[DType, Datatype] = {row.dtype: row for row in TYPES.values() if row.name != "BF16"}
if BFLOAT16 is not None:
    BY_DTYPE[BFLOAT16] = TYPES["BF16"]


def type_of(array: Array) -> Datatype:
    """Return the datatype of an array: BYTES for strings of any kind. Raises TypeError for a dtype without a datatype."""
    row = BY_DTYPE.get(array.dtype)
    if row is not None:
        return row
    if array.dtype.kind in "SU":
        return TYPES["BYTES"]
    raise TypeError(f"numpy dtype '{array.dtype}' has no datatype in the V2 protocol")


def dtype_of(kind: str) -> DType:
    """Return the numpy dtype of a datatype; uint16 for BF16 if ml_dtypes is missing."""
    return BFLOAT16 if kind == "BF16" and BFLOAT16 is not None else TYPES[kind].dtype


def align_up(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT


def serialize(array: Array) -> bytes:
    """Return a BYTES tensor in the protocol's binary form. Elements that are not bytes are converted to text."""
    parts: list[bytes] = []
    for element in array.ravel().tolist():
        value = element if isinstance(element, bytes) else str(element).encode()
        parts.append(len(value).to_bytes(4, "little"))
        parts.append(value)
    return b"".join(parts)


def deserialize(data: bytes, shape: list[int]) -> Array:
    """Return the BYTES tensor in `data` as an object array of bytes. Raises ValueError if the data does not fill the shape."""
    count = int(np.prod(shape, dtype=np.int64))
    result = np.empty(count, np.object_)
    offset = 0
    for index in range(count):
        start = offset + 4
        if start > len(data):
            raise ValueError(f"expected {count} strings, but the data ends after {index}")
        offset = start + int.from_bytes(data[offset:start], "little")
        result[index] = data[start:offset]
    if offset != len(data):
        raise ValueError(f"expected {count} strings in exactly {len(data)} bytes")
    return result.reshape(shape)


class TensorWriter:
    """Places arrays in a segment: call `add` for each array, take a segment of `size` bytes, then call `write`."""

    def __init__(self) -> None:
        self.size = 0
        self._pending: list[tuple[int, int, Array | bytes | bytearray]] = []

    def add(self, name: str, kind: str, array: Array, align: bool = True) -> TensorRow:
        """Reserve the next place for an array. align: if False, directly after the previous array."""
        data: Array | bytes = array
        length = array.nbytes
        if kind == "BYTES":
            data = serialize(array)
            length = len(data)
        offset = align_up(self.size) if align and self.size else self.size
        self.size = offset + length
        if length:
            self._pending.append((offset, length, data))
        return name, kind, array.shape, offset, length

    def add_strings(self, name: str, values: Sequence[bytes]) -> TensorRow:
        """Reserve the next place for a BYTES tensor of shape [number of values, 1]. `write` copies large values later."""
        start = align_up(self.size) if self.size else 0
        offset = start
        for value in values:
            length = len(value)
            header = length.to_bytes(4, "little")
            if length <= _JOINED_BYTES:
                self._pending.append((offset, 4 + length, header + value))
            else:
                self._pending.append((offset, 4, header))
                self._pending.append((offset + 4, length, value))
            offset += 4 + length
        self.size = offset
        return name, "BYTES", (len(values), 1), start, offset - start

    def write(self, memory: mmap.mmap) -> None:
        """Copy each array into its place. The interpreter's lock is released during large copies."""
        for offset, length, data in self._pending:
            try:
                if length <= _PLAIN_BYTES:
                    memory[offset : offset + length] = data  # type: ignore[assignment]  # any buffer
                    continue
            except ValueError:  # the array is not contiguous
                pass
            array = np.frombuffer(data, np.uint8) if isinstance(data, bytes | bytearray) else data
            np.ndarray(array.shape, array.dtype, memory, offset)[...] = array

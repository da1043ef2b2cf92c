"""The format of tensors between the core and a worker: small tensors are part of the message, large tensors in shared memory.

A datatype is encoded as numpy's character for it. The data of BYTES tensors is serialized as in the V2 protocol.
"""

import math
from typing import Any

import numpy as np

from serving.core.datatypes import DATATYPES, Tensor, deserialize_bytes, serialize_bytes
from serving.workers.link.shared_area import AreaReader, AreaWriter

INLINE = 8 << 10  # bytes up to which copying a tensor twice costs less than a place in shared memory
ALIGNMENT = 16  # tensors in one buffer begin at multiples of this many bytes

DTYPES: dict[str, "np.dtype[Any]"] = {row.dtype.char: row.dtype for row in DATATYPES.values()}
DTYPES |= {"q": np.dtype(np.int64), "Q": np.dtype(np.uint64)}  # synonyms of "l" and "L", which some libraries use
TEXT = "OSU"  # kinds of BYTES

Payload = bytes | tuple[int, int]  # the data, or its place and size in shared memory


def aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def pack(tensor: Tensor, area: AreaWriter) -> Payload:
    """Return a tensor's data, or its place and size in shared memory if it is large."""
    if tensor.dtype.char in TEXT:
        data = serialize_bytes(tensor)
        place = area.place(len(data)) if len(data) > INLINE else -1
        if place < 0:
            return data
        area.write(place, data)
        return place, len(data)
    size = tensor.nbytes
    place = area.place(size) if size > INLINE else -1
    if place < 0:
        return tensor.tobytes()
    area.array(place, tensor.shape, tensor.dtype)[...] = tensor
    return place, size


def unpack(char: str, shape: tuple[int, ...], payload: Payload, area: AreaReader) -> Tensor:
    """Return the tensor, as a view of the received bytes. BYTES are copied."""
    data: Any = payload if isinstance(payload, bytes) else area.view(*payload)
    if char in TEXT:
        return deserialize_bytes(data, math.prod(shape)).reshape(shape)
    return np.ndarray(shape, DTYPES[char], data)

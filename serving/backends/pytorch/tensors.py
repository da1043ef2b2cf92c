"""Converts tensors between numpy and torch, without a copy where that is safe."""

import ml_dtypes
import numpy as np
import torch

from serving.core.datatypes import Tensor
from serving.core.device_tensor import DeviceTensor
from serving.core.errors import internal, invalid

_BF16 = np.dtype(ml_dtypes.bfloat16)

DATATYPES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "UINT8",
    torch.uint16: "UINT16",
    torch.uint32: "UINT32",
    torch.uint64: "UINT64",
    torch.int8: "INT8",
    torch.int16: "INT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}

# Below this size a copy (0.7 us) costs less than a writable view of read-only memory (2.2 us).
_COPY_BELOW = 16 << 10


class _Writable:
    """Declares an array's memory writable, because torch warns of read-only memory. Models that write get a copy anyway."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, array: Tensor) -> None:
        self.owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def to_torch(array: Tensor, copy: bool = False) -> torch.Tensor:
    """Return a tensor on the host. copy: copy the array, because the model writes to this input and others may read it."""
    if array.dtype == _BF16:
        return to_torch(array.view(np.int16), copy).view(torch.bfloat16)
    if copy or (not array.flags.writeable and array.nbytes < _COPY_BELOW):
        array = array.copy()
    elif not array.flags.writeable:
        array = np.asarray(_Writable(array))
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor, name: str) -> Tensor:
    """Return an array over a tensor's memory or, for a tensor on a GPU, over a copy on the host."""
    _check_carried(tensor, name)
    tensor = tensor.detach().cpu()
    bf16 = tensor.dtype is torch.bfloat16
    array: Tensor = (tensor.contiguous().view(torch.int16) if bf16 else tensor).numpy()
    return array.view(_BF16) if bf16 else array


def to_device_tensor(tensor: torch.Tensor, name: str) -> DeviceTensor:
    _check_carried(tensor, name)
    return DeviceTensor.of(tensor.detach())


def _check_carried(tensor: torch.Tensor, name: str) -> None:
    if tensor.layout is not torch.strided or tensor.dtype not in DATATYPES:
        raise internal(
            f"the model's output '{name}' is a {tensor.layout} {tensor.dtype}, which the protocol cannot carry"
        )


def to_strings(array: Tensor, name: str) -> list[str]:
    """Return BYTES elements as a List[str], for TorchScript."""
    try:
        return [
            element.decode() if isinstance(element, bytes) else str(element) for element in array.reshape(-1).tolist()
        ]
    except UnicodeDecodeError:
        raise invalid(
            f"input '{name}' has an element that is not UTF-8 text, which is all that TorchScript strings hold"
        ) from None


def from_strings(values: list[str]) -> Tensor:
    array = np.empty(len(values), np.object_)
    array[:] = [value.encode() for value in values]
    return array

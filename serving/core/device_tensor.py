"""Tensors on a GPU, between a frontend's CUDA shared memory, the models of an ensemble, and their backends.

What only asks for shapes, datatypes and rows treats one as it treats an array. What reads the data either knows it
(backends on a GPU take `tensor` by reference) or gets a copy on the host by way of `__array__`.
"""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from serving.core.datatypes import DATATYPES

_BF16 = np.dtype(ml_dtypes.bfloat16)
_BY_NAME = {row.dtype.name: row.dtype for row in DATATYPES.values() if row.itemsize}  # torch has the same names


class DeviceTensor:
    """A torch tensor of any strides with the shape and numpy dtype of the protocol.

    `owner` is what must outlive the memory: the session whose allocator it comes from, say. Whoever makes one has waited for
    the device: the data is there.
    """

    __slots__ = ("dtype", "owner", "tensor")

    def __init__(self, tensor: Any, dtype: np.dtype[Any], owner: object = None) -> None:
        self.tensor = tensor
        self.dtype = dtype
        self.owner = owner

    @classmethod
    def from_bytes(cls, memory: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "DeviceTensor":
        """Over the bytes of a torch tensor uint8 [n]; a copy where they are not aligned. ValueError for a wrong size."""
        import torch

        if memory.storage_offset() % dtype.itemsize:
            memory = memory.clone()
            _wait(memory)
        if dtype.kind == "b":
            tensor = memory != 0  # a byte other than 0 and 1 is no valid boolean
            _wait(tensor)
        else:
            tensor = memory.view(getattr(torch, dtype.name))
        if tensor.numel() != int(np.prod(shape, dtype=np.int64)):
            raise ValueError(f"{tensor.numel()} elements do not fill shape {list(shape)}")
        return cls(tensor.reshape(shape), dtype)

    @classmethod
    def of(cls, tensor: Any, owner: object = None) -> "DeviceTensor":
        """With the dtype that the torch tensor has; KeyError where the protocol has none like it."""
        return cls(tensor, _BY_NAME[str(tensor.dtype).removeprefix("torch.")], owner)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return int(self.tensor.ndim)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, rows: Any) -> "DeviceTensor":
        return DeviceTensor(self.tensor[rows], self.dtype, self.owner)

    def reshape(self, *shape: Any) -> "DeviceTensor":
        return DeviceTensor(self.tensor.reshape(*shape), self.dtype, self.owner)

    def copy_to(self, memory: Any) -> None:
        """Into a torch tensor uint8 [nbytes], on the same GPU or another one; returns when it is there."""
        import torch

        memory.copy_(self.tensor.contiguous().reshape(-1).view(torch.uint8))
        _wait(memory)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """A copy on the host."""
        import torch

        tensor = self.tensor.detach().cpu()
        if self.dtype == _BF16:  # which numpy does not know
            array: NDArray[Any] = tensor.contiguous().view(torch.int16).numpy().view(_BF16)
        else:
            array = tensor.numpy()
        return array if dtype is None or dtype == array.dtype else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """Contiguous. ONNX Runtime takes booleans as bytes only, and sees by `dtype` what they are."""
        import torch

        tensor = self.tensor.detach().contiguous()
        return (tensor.view(torch.uint8) if self.dtype.kind == "b" else tensor).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.tensor.__dlpack_device__()
        return int(kind), int(number)


def host_array(tensor: Any) -> NDArray[Any]:
    """The tensor itself when it is a numpy array; a copy on the host of one on a GPU."""
    return tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor)


def concatenate(tensors: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Along the first dimension: on the GPU where all of them lie on one, else on the host."""
    if DeviceTensor in map(type, tensors):
        joined: NDArray[Any] = _joined(tensors)
        return joined
    return np.concatenate(tensors)


def _joined(tensors: Sequence[Any]) -> Any:
    devices = {tensor.tensor.device if isinstance(tensor, DeviceTensor) else None for tensor in tensors}
    if None in devices or len(devices) > 1:
        return np.concatenate([host_array(tensor) for tensor in tensors])
    import torch

    joined = torch.cat([tensor.tensor for tensor in tensors])
    _wait(joined)
    return DeviceTensor(joined, tensors[0].dtype)


def _wait(tensor: Any) -> None:
    """Until what torch has queued for a tensor on its device's current stream is done."""
    if tensor.is_cuda:
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()

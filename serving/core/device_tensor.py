"""Tensors that stay on a GPU between clients' CUDA shared memory, backends and the models of an ensemble.

Code that needs only shapes, datatypes or rows treats a DeviceTensor like an array. Backends on a GPU use `tensor`, the torch
tensor itself. Other code gets a copy on the host from `__array__`.
"""

from collections.abc import Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, SupportsIndex, cast

import ml_dtypes
import numpy as np

from serving.core.datatypes import DATATYPES, Dtype, Tensor

if TYPE_CHECKING:
    import torch

# An index that selects rows of a tensor.
Rows = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]

_BF16 = np.dtype(ml_dtypes.bfloat16)
# torch and numpy use the same names for dtypes.
_BY_NAME = {row.dtype.name: row.dtype for row in DATATYPES.values() if row.itemsize}


class DeviceTensor:
    """A torch tensor of any strides with the shape and numpy dtype of the protocol.

    owner: an object that must outlive the memory, such as the session whose allocator made it. Create a DeviceTensor only after
    the GPU has finished writing: its data may be read immediately.
    """

    __slots__ = ("dtype", "owner", "tensor")

    def __init__(self, tensor: "torch.Tensor", dtype: Dtype, owner: object = None) -> None:
        self.tensor = tensor
        self.dtype = dtype
        self.owner = owner

    @classmethod
    def from_bytes(cls, memory: "torch.Tensor", dtype: Dtype, shape: tuple[int, ...]) -> "DeviceTensor":
        """Return a tensor over a uint8 torch tensor [n], or over a copy of it if its bytes are not aligned.
        Raises ValueError if the size is wrong."""
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
    def of(cls, tensor: "torch.Tensor", owner: object = None) -> "DeviceTensor":
        """Wrap a torch tensor. Raises KeyError if the protocol has no datatype for its dtype."""
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

    def __getitem__(self, rows: Rows) -> "DeviceTensor":
        return DeviceTensor(self.tensor[rows], self.dtype, self.owner)

    def reshape(self, *shape: SupportsIndex | tuple[int, ...]) -> "DeviceTensor":
        return DeviceTensor(self.tensor.reshape(*shape), self.dtype, self.owner)

    def copy_to(self, memory: "torch.Tensor") -> None:
        """Copy the data into a torch tensor uint8 [nbytes] on any GPU, and wait until the copy is complete."""
        import torch

        memory.copy_(self.tensor.contiguous().reshape(-1).view(torch.uint8))
        _wait(memory)

    def __array__(self, dtype: Dtype | None = None, copy: bool | None = None) -> Tensor:
        """Return a copy on the host."""
        import torch

        tensor = self.tensor.detach().cpu()
        if self.dtype == _BF16:  # numpy has no BF16
            array: Tensor = tensor.contiguous().view(torch.int16).numpy().view(_BF16)
        else:
            array = tensor.numpy()
        return array if dtype is None or dtype == array.dtype else array.astype(dtype)

    def __dlpack__(self, **options: object) -> object:
        """Return a capsule of the contiguous data. Booleans are exported as bytes, as ONNX Runtime expects."""
        import torch

        tensor = self.tensor.detach().contiguous()
        return (tensor.view(torch.uint8) if self.dtype.kind == "b" else tensor).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.tensor.__dlpack_device__()
        return int(kind), int(number)


def host_array(tensor: Tensor | DeviceTensor) -> Tensor:
    """Return a numpy array unchanged, or a copy of a GPU's tensor on the host."""
    return tensor if isinstance(tensor, np.ndarray) else np.asarray(tensor)


def concatenate(tensors: Sequence[Tensor | DeviceTensor]) -> Tensor:
    """Join tensors along the first dimension: on the GPU if all of them are on one GPU, else on the host."""
    if DeviceTensor not in map(type, tensors):
        return np.concatenate(cast(Sequence[Tensor], tensors))
    on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    if len(on_device) < len(tensors) or len({tensor.tensor.device for tensor in on_device}) > 1:
        return np.concatenate([host_array(tensor) for tensor in tensors])
    import torch

    joined = torch.cat([tensor.tensor for tensor in on_device])
    _wait(joined)
    return cast(Tensor, DeviceTensor(joined, on_device[0].dtype))


def _wait(tensor: "torch.Tensor") -> None:
    """Wait for the work that torch has queued on the current stream of a tensor's device."""
    if tensor.is_cuda:
        import torch

        torch.cuda.current_stream(tensor.device).synchronize()

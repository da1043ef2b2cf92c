"""pb_utils.Tensor: a named array on the host, or a tensor on a GPU."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from serving.backends.channel.messages import TensorRow
from serving.backends.channel.tensors import BFLOAT16, TYPES, Array, Memory, deserialize, type_of
from serving.child_program.link.errors import TritonModelException
from serving.child_program.pb_utils import dlpack
from serving.child_program.pb_utils.checks import text

if TYPE_CHECKING:
    import torch


def checked_tensors(name: str, tensors: Iterable["Tensor"]) -> "list[Tensor]":
    """Return the tensors as a list. Raises TritonModelException if one is no Tensor. name: the argument's name."""
    found = list(tensors)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise TritonModelException(f"{name} must be pb_utils.Tensor objects, not {type(tensor).__name__}")
    return found


class Tensor:
    """A named tensor: a numpy array on the host, or a tensor on a GPU received by DLPack.

    The input arrays of a request are views of shared memory, and valid until `execute` returns. A model must copy an array to
    keep it.
    """

    __slots__ = ("_array", "_data", "_gpu", "_name", "_shape", "_type")

    def __init__(self, name: str, numpy_array: Array) -> None:
        self._name = text("a tensor's name", name)
        array = numpy_array
        if type(array) is not np.ndarray:
            if not isinstance(array, np.ndarray | np.generic):
                raise TypeError(f"tensor '{name}' must be made from a numpy array, not from {type(array).__name__}")
            array = np.asarray(array)
        if not name:
            raise TritonModelException("a tensor's name must not be empty")
        self._type = type_of(array)
        self._shape: list[int] | None = None  # None: use the shape of the array
        self._array: Array | None = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._data: memoryview | None = None
        self._gpu: torch.Tensor | None = None

    @classmethod
    def _from_memory(cls, row: TensorRow, memory: Memory) -> "Tensor":
        """Return a view of a segment. Strings are decoded when the model first reads them."""
        name, kind, shape, offset, length = row
        self: Tensor = object.__new__(cls)
        self._name = name
        self._type = TYPES[kind]
        self._shape = shape  # type: ignore[assignment]  # JSON has the shape as a list
        self._gpu = self._array = self._data = None
        if kind == "BYTES":
            self._data = memoryview(memory)[offset : offset + length]
        else:
            self._array = np.ndarray(shape, self._type.dtype, memory, offset)
            if kind == "BF16" and BFLOAT16 is not None:
                self._array = self._array.view(BFLOAT16)
        return self

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        if self._shape is None:
            assert self._array is not None
            self._shape = list(self._array.shape)
        return self._shape

    def triton_dtype(self) -> int:
        """Return the datatype's number in TRITONSERVER_DataType."""
        return self._type.number

    def is_cpu(self) -> bool:
        return self._gpu is None

    def as_numpy(self) -> Array:
        """Return the numpy array. Strings are an object array of bytes. BF16 needs the ml_dtypes package."""
        if self._gpu is not None:
            raise TritonModelException(f"tensor '{self._name}' is on a GPU and cannot be given as a numpy array")
        if self._array is None:
            assert self._data is not None
            self._array = deserialize(bytes(self._data), self.shape())
        if self._type.name == "BF16" and self._array.dtype != BFLOAT16:
            raise TritonModelException(
                f"tensor '{self._name}' is BF16: use to_dlpack, or install the ml_dtypes package"
            )
        return self._array

    def to_dlpack(self) -> object:
        """Return a DLPack capsule that shares the tensor's memory."""
        return self.__dlpack__()

    def __dlpack__(self, stream: int | None = None, **_: object) -> object:
        if self._gpu is not None:
            capsule: object = self._gpu.__dlpack__(stream=stream)
            return capsule
        if self._type.name == "BYTES":
            raise TritonModelException(f"tensor '{self._name}' holds strings, which DLPack has no type for")
        assert self._array is not None
        if self._type.name == "BF16" and BFLOAT16 is None:
            return dlpack.as_bfloat16(self._array)
        return dlpack.to_capsule(self._array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self._gpu is None else dlpack.device(self._gpu)

    @staticmethod
    def from_dlpack(name: str, tensor: object) -> "Tensor":
        """Return a tensor that shares the memory of a capsule or of an object with `__dlpack__`, which must be in C order."""
        if not hasattr(tensor, "__dlpack__") and type(tensor).__name__ != "PyCapsule":
            raise TritonModelException(
                f"a DLPack capsule or tensor is needed for '{name}', not {type(tensor).__name__}"
            )
        if dlpack.device(tensor)[0] in dlpack.CPU_DEVICES:
            array = dlpack.from_capsule(tensor)
            if not array.flags.c_contiguous:
                raise TritonModelException(f"the DLPack tensor for '{name}' is not contiguous in C order")
            return Tensor(name, array)
        return Tensor._on_gpu(name, tensor)

    def _copied_to(self, device: str) -> "Tensor":
        """Return a copy on a GPU, except for strings, which stay on the host. device: torch's name for the GPU."""
        import torch

        return self if self._type.name == "BYTES" else Tensor._on_gpu(self._name, torch.from_dlpack(self).to(device))

    @classmethod
    def _on_gpu(cls, name: str, tensor: object) -> "Tensor":
        import torch

        gpu = tensor if isinstance(tensor, torch.Tensor) else torch.from_dlpack(tensor)
        if not gpu.is_contiguous():
            raise TritonModelException(f"the DLPack tensor for '{name}' is not contiguous in C order")
        kind = str(gpu.dtype).removeprefix("torch.")
        short = {"bool": "BOOL", "bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
        self = object.__new__(cls)
        self._name = name
        self._type = TYPES[short.get(kind, kind.upper())]
        self._shape = list(gpu.shape)
        self._array = self._data = None
        self._gpu = gpu
        return self

    def _host(self) -> tuple[str, Array]:
        """Return the name of the datatype and a contiguous array on the host. For BF16, the array may be of dtype uint16."""
        if self._gpu is None:
            if self._array is None:
                self.as_numpy()
            assert self._array is not None
            return self._type.name, self._array
        host = self._gpu.detach().cpu()
        if self._type.name == "BF16":
            import torch

            host = host.view(torch.uint16)
        return self._type.name, host.numpy()

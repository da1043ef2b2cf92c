"""DLPack capsules of numpy arrays. numpy lacks BF16, so a BF16 capsule is a UINT16 capsule with another type code."""

import ctypes
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from serving.backends.channel.tensors import BFLOAT16, Array, type_of

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

CPU_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
_DEVICE_OFFSET = 8  # the device's offset in a DLTensor: after the data pointer
_CODE_OFFSET = 20  # the type code's offset: after the pointer, the device and the number of dimensions
_UINT, _BFLOAT = 1, 4  # DLDataTypeCode

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _HasDLPack(Protocol):
    """An object of the array API standard's data interchange protocol."""

    def __dlpack__(self) -> "CapsuleType": ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class _Capsule:
    """Wraps a capsule, because numpy.from_dlpack takes an object."""

    def __init__(self, capsule: "CapsuleType") -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: object) -> "CapsuleType":
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return device(self._capsule)


def device(tensor: object) -> tuple[int, int]:
    """Return (DLDeviceType, id) of a capsule or of an object with `__dlpack_device__`."""
    if hasattr(tensor, "__dlpack_device__"):
        kind, number = cast("_HasDLPack", tensor).__dlpack_device__()
        return int(kind), int(number)
    pair = (ctypes.c_int32 * 2).from_address(_address(cast("CapsuleType", tensor)) + _DEVICE_OFFSET)
    return pair[0], pair[1]


def to_capsule(array: Array) -> "CapsuleType":
    """Return a capsule that shares the array's memory. A read-only array is copied, because DLPack has no read-only memory."""
    if not array.flags.writeable:
        array = array.copy()
    return as_bfloat16(array) if type_of(array).name == "BF16" else array.__dlpack__()


def as_bfloat16(array: Array) -> "CapsuleType":
    """Return a BF16 capsule of an array of 16-bit elements of any dtype."""
    capsule = array.view(np.uint16).__dlpack__()
    _code(capsule).value = _BFLOAT
    return capsule


def from_capsule(tensor: object) -> Array:
    """Return an array that shares the memory of a CPU capsule, or of an object with `__dlpack__`. BF16 needs ml_dtypes."""
    has_method = hasattr(tensor, "__dlpack__")
    capsule = cast("_HasDLPack", tensor).__dlpack__() if has_method else cast("CapsuleType", tensor)
    code = _code(capsule)
    if code.value != _BFLOAT:
        return np.from_dlpack(_Capsule(capsule))
    if BFLOAT16 is None:
        raise TypeError("a BF16 tensor needs the ml_dtypes package in the model's Python")
    code.value = _UINT
    return np.from_dlpack(_Capsule(capsule)).view(BFLOAT16)


def _address(capsule: "CapsuleType") -> int:
    return int(_pointer(capsule, b"dltensor"))


def _code(capsule: "CapsuleType") -> ctypes.c_uint8:
    return ctypes.c_uint8.from_address(_address(capsule) + _CODE_OFFSET)

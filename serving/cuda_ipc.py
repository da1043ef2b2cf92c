"""CUDA memory of another process, by its IPC handle. Imported only where there is a GPU.

Source: CUDA Runtime API, "Device Management": cudaIpcOpenMemHandle and cudaIpcCloseMemHandle.
"""

import ctypes
from typing import Any

from serving.errors import invalid, unavailable

HANDLE_SIZE = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_SIZE)]


class _ArrayInterface:
    """What torch.as_tensor reads; source: numba's CUDA Array Interface, version 3."""

    def __init__(self, pointer: int, byte_size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (byte_size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def open_handle(name: str, raw_handle: bytes, device_id: int, byte_size: int) -> tuple[int, Any]:
    """(device pointer, torch tensor uint8 [byte_size] over it); INVALID_ARG for a handle that does not open."""
    import torch

    if len(raw_handle) != HANDLE_SIZE:
        raise invalid(f"failed to register CUDA shared memory region '{name}': a handle has {HANDLE_SIZE} bytes")
    runtime = _runtime()
    handle = _Handle()
    ctypes.memmove(ctypes.byref(handle), raw_handle, HANDLE_SIZE)
    pointer = ctypes.c_void_p()
    with torch.cuda.device(device_id):
        status = runtime.cudaIpcOpenMemHandle(ctypes.byref(pointer), handle, ctypes.c_uint(_LAZY_PEER_ACCESS))
    if status != 0 or not pointer.value:
        raise invalid(
            f"failed to register CUDA shared memory region '{name}': its handle does not open (CUDA error {status})"
        )
    memory = torch.as_tensor(_ArrayInterface(pointer.value, byte_size), device=f"cuda:{device_id}")
    return pointer.value, memory


def close_handle(pointer: int) -> None:
    _runtime().cudaIpcCloseMemHandle(ctypes.c_void_p(pointer))


def _runtime() -> ctypes.CDLL:
    """The CUDA runtime that torch has loaded, or the system's."""
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise unavailable("CUDA shared memory needs the CUDA runtime library, libcudart")

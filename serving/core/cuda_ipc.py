"""Opens CUDA memory of another process by its IPC handle. Imported only on machines with a GPU.

Source: CUDA Runtime API, "Device Management": cudaIpcOpenMemHandle and cudaIpcCloseMemHandle.
"""

import ctypes
import weakref
from typing import TYPE_CHECKING

from serving.core.errors import invalid, unavailable

if TYPE_CHECKING:
    import torch

HANDLE_SIZE = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_SIZE)]


class _ArrayInterface:
    """The interface that torch.as_tensor reads. Source: numba's CUDA Array Interface, version 3."""

    def __init__(self, pointer: int, byte_size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (byte_size,),
            "typestr": "|u1",
            "data": (pointer, False),
            "version": 3,
        }


def open_handle(name: str, raw_handle: bytes, device_id: int, byte_size: int) -> "torch.Tensor":
    """Return a uint8 torch tensor [byte_size] over the memory. The handle is closed when the last view is freed.
    Raises INVALID_ARG if the handle does not open."""
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
    interface = _ArrayInterface(pointer.value, byte_size)  # torch keeps this object while any view of the memory exists
    weakref.finalize(interface, _close, runtime, pointer, device_id).atexit = False
    return torch.as_tensor(interface, device=f"cuda:{device_id}")


def _close(runtime: ctypes.CDLL, pointer: ctypes.c_void_p, device_id: int) -> None:
    import torch

    with torch.cuda.device(device_id):
        runtime.cudaIpcCloseMemHandle(pointer)


def _runtime() -> ctypes.CDLL:
    """Return the newest CUDA runtime library that can be loaded. Raises UNAVAILABLE if there is none."""
    for name in ("libcudart.so.13", "libcudart.so.12", "libcudart.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise unavailable("CUDA shared memory needs the CUDA runtime library, libcudart")

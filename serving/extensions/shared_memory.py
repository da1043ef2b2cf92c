"""Shared memory that clients register, to pass tensors by reference: system (POSIX) and CUDA (IPC handles).

Regions of both kinds share one namespace. Every view is checked against the region's bounds, and no message contains a key or
an address.
Source: Triton, docs/protocol/extension_shared_memory.md.
"""

import mmap
import os
import re
import resource
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from serving.core.devices import gpu_count
from serving.core.errors import Exhausted, ServingError, already_exists, internal, invalid, not_found, unavailable
from serving.core.output_target import RegionMemory

if TYPE_CHECKING:
    import torch

_FOLDER = "/dev/shm"
_KEY = re.compile(r"/?[A-Za-z0-9_.\-]{1,250}")
_MAX_SIZE = 1 << 46
_MAX_REGIONS = 4096
_DESCRIPTORS_PART = 4  # mapped objects may use 1/4 of the process's descriptors


class ClientMemory(np.ndarray[Any, Any]):
    """Bytes of a region that a client has registered, and may write to at any time."""


def in_client_memory(tensor: NDArray[Any]) -> bool:
    """Return whether a tensor is a view of a region of the host's memory."""
    found: object = tensor
    while type(found) is np.ndarray or type(found) is memoryview:
        found = found.obj if isinstance(found, memoryview) else found.base
    return isinstance(found, ClientMemory)


class _MappedObject:
    """A POSIX shared-memory object, mapped once for all its regions. file: device and inode, as two keys may name one file."""

    def __init__(self, mapping: mmap.mmap, file: tuple[int, int]) -> None:
        self.mapping = mapping
        self.file = file
        self.bytes = np.frombuffer(mapping, np.uint8).view(ClientMemory)


@dataclass(frozen=True, slots=True)
class SystemRegion:
    """`byte_size` bytes of a POSIX shared-memory object, beginning at `offset`."""

    name: str
    key: str = field(repr=False)
    offset: int
    byte_size: int
    memory: NDArray[np.uint8] = field(repr=False)
    mapped: "_MappedObject" = field(repr=False)

    def view(self, offset: int, size: int) -> NDArray[np.uint8]:
        _check_bounds(self.name, self.byte_size, offset, size)
        # The object may have become shorter: reading mapped pages behind its end would kill the server with SIGBUS.
        if self.mapped.mapping.size() < self.offset + self.byte_size:
            raise invalid(f"shared memory region '{self.name}' has become shorter than it was when it was registered")
        return self.memory[offset : offset + size]


@dataclass(frozen=True, slots=True)
class CudaRegion:
    """`byte_size` bytes on a GPU. `memory` is a torch tensor of uint8 over the memory that the client owns."""

    name: str
    device_id: int
    byte_size: int
    memory: "torch.Tensor" = field(repr=False)

    def view(self, offset: int, size: int) -> "torch.Tensor":
        _check_bounds(self.name, self.byte_size, offset, size)
        return self.memory[offset : offset + size]


Region = TypeVar("Region", SystemRegion, CudaRegion)


class SharedMemory:
    """The registered regions. A region that is unregistered stays mapped while a request still uses it."""

    def __init__(self, allowed: bool) -> None:
        self._allowed = allowed
        self._system: dict[str, SystemRegion] = {}
        self._objects: WeakValueDictionary[tuple[int, int], _MappedObject] = WeakValueDictionary()  # objects by `file`
        self._mapped: WeakSet[_MappedObject] = WeakSet()  # all mappings, also older ones of objects that have grown
        self._cuda: dict[str, CudaRegion] = {}

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map a region. Raises ALREADY_EXISTS if the name is known, INTERNAL (as Triton's tests expect) if the key does not
        exist, and INVALID_ARG if the bounds are outside the object."""
        self._check_new(name)
        if not _KEY.fullmatch(key) or key.strip("/") in (".", ".."):
            raise _absent(key)
        _check_size(name, offset, byte_size)
        self._system[name] = SystemRegion(name, key, offset, byte_size, *self._map(name, key, offset, byte_size))

    def register_cuda(self, name: str, raw_handle: bytes, device_id: int, byte_size: int) -> None:
        """Open a cudaIpcMemHandle_t. Raises UNAVAILABLE on a machine without a GPU."""
        self._check_new(name)
        _check_size(name, 0, byte_size)
        if not 0 <= device_id < gpu_count():
            raise unavailable(
                f"CUDA shared memory region '{name}' needs GPU {device_id}, but this machine has {gpu_count()}"
            )
        from serving.core.cuda_ipc import open_handle

        self._cuda[name] = CudaRegion(name, device_id, byte_size, open_handle(name, raw_handle, device_id, byte_size))

    def system_status(self, name: str = "") -> list[SystemRegion]:
        return _status(self._system, name, "system")

    def cuda_status(self, name: str = "") -> list[CudaRegion]:
        return _status(self._cuda, name, "CUDA")

    def unregister_system(self, name: str = "") -> None:
        """Forget one region, or all regions if no name is given. An unknown name is no error, as in Triton."""
        for one in [name] if name else list(self._system):
            self._system.pop(one, None)

    def unregister_cuda(self, name: str = "") -> None:
        for one in [name] if name else list(self._cuda):
            self._cuda.pop(one, None)

    def view(self, name: str, offset: int, size: int) -> "RegionMemory":
        """Return the bytes of a region as uint8 [size], on the host or on a GPU. Writing to them writes to the region."""
        region = self._system.get(name) or self._cuda.get(name)
        if region is None:
            raise not_found(f"Unable to find shared memory region: '{name}'")
        return region.view(offset, size)

    def overlap(self, one: tuple[str, int, int], other: tuple[str, int, int]) -> bool:
        """Return whether two pieces (region, offset, size) of system shared memory have bytes in common."""
        first, second = self._system.get(one[0]), self._system.get(other[0])
        if first is None or second is None or first.mapped.file != second.mapped.file:
            return False
        start, begin = first.offset + one[1], second.offset + other[1]
        return start < begin + other[2] and begin < start + one[2]

    def _map(self, name: str, key: str, offset: int, byte_size: int) -> "tuple[NDArray[np.uint8], _MappedObject]":
        """Return the bytes of a region, and the mapped object, which all regions of this object share."""
        try:
            descriptor = os.open(os.path.join(_FOLDER, key.lstrip("/")), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            raise _absent(key) from None
        try:
            status = os.fstat(descriptor)
            if offset + byte_size > status.st_size:
                raise invalid(
                    f"failed to register shared memory region '{name}': invalid args: offset and size go beyond its end"
                )
            file = status.st_dev, status.st_ino
            found = self._objects.get(file)
            if found is None or len(found.mapping) < offset + byte_size:
                found = self._objects[file] = self._map_object(descriptor, status.st_size, file)
        finally:
            os.close(descriptor)
        return found.bytes[offset : offset + byte_size], found

    def _map_object(self, descriptor: int, size: int, file: tuple[int, int]) -> "_MappedObject":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTORS_PART
        if len(self._mapped) >= most:
            raise Exhausted(f"the server's regions use {most} shared memory objects, their limit: unregister some")
        found = _MappedObject(mmap.mmap(descriptor, size), file)
        self._mapped.add(found)
        return found

    def _check_new(self, name: str) -> None:
        if not self._allowed:
            raise unavailable("shared memory is off on this server: it was started without --allow-client-shm=true")
        if name in self._system or name in self._cuda:
            raise already_exists(f"shared memory region '{name}' already in manager")
        if len(self._system) + len(self._cuda) >= _MAX_REGIONS:
            raise Exhausted(f"this server has {_MAX_REGIONS} shared memory regions, its limit: unregister some")


def _check_size(name: str, offset: int, byte_size: int) -> None:
    if not name or offset < 0 or not 0 < byte_size < _MAX_SIZE:
        raise invalid(
            f"failed to register shared memory region '{name}': invalid args: expected a name, an offset and a byte_size over 0"
        )


def _absent(key: str) -> ServingError:
    return internal(f"Unable to open shared memory region: '{key[:255]}'")


def _check_bounds(name: str, byte_size: int, offset: int, size: int) -> None:
    if offset < 0 or size < 0 or offset + size > byte_size:
        what = "Invalid offset + byte size" if 0 <= offset < byte_size else "Invalid offset"
        raise invalid(
            f"{what} for shared memory region: '{name}' has {byte_size} bytes, and {size} bytes at offset {offset} do not fit"
        )


def _status(regions: dict[str, Region], name: str, kind: str) -> list[Region]:
    if not name:
        return list(regions.values())
    if name not in regions:
        raise not_found(f"Unable to find {kind} shared memory region: '{name}'")
    return [regions[name]]

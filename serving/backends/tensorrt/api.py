"""Types for the part of TensorRT's Python API that is used: the package has no types, and most machines lack the package.

Source: the Python API of TensorRT 10, ICudaEngine and IExecutionContext.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Protocol

Shape = tuple[int, ...]

Reallocate = Callable[[str, int], int]
"""Return the address of memory for an output, by its name and size in bytes."""
Notify = Callable[[str, Shape], None]
"""Note the shape of an output."""


class ExecutionContext(Protocol):
    """IExecutionContext: executes one run at a time, with the shapes and addresses that were set before."""

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool: ...

    def set_input_shape(self, name: str, shape: Shape) -> bool: ...

    def get_tensor_shape(self, name: str) -> Iterable[int]: ...

    def set_tensor_address(self, name: str, address: int) -> bool: ...

    def set_output_allocator(self, name: str, allocator: object) -> bool: ...

    def infer_shapes(self) -> list[str]: ...

    def execute_async_v3(self, stream: int) -> bool: ...


class CudaEngine(Protocol):
    """ICudaEngine: a deserialised plan on one device."""

    num_io_tensors: int
    num_optimization_profiles: int

    def get_tensor_name(self, index: int) -> str: ...

    def get_tensor_mode(self, name: str) -> object: ...

    def get_tensor_dtype(self, name: str) -> Enum: ...

    def get_tensor_shape(self, name: str) -> Iterable[int]: ...

    def get_tensor_profile_shape(self, name: str, profile: int) -> tuple[Shape, Shape, Shape]: ...

    def is_shape_inference_io(self, name: str) -> bool: ...

    def create_execution_context(self, strategy: object) -> ExecutionContext | None: ...


class Logger(Protocol):
    """An ILogger that keeps the last error."""

    last_error: str

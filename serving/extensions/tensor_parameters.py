"""Reads inputs from shared memory, and returns outputs as classes or in shared memory if a client asks for it.

This module is independent of the protocol. Frontends read the parameters of inputs and outputs (`memory_range_of`,
`output_rule`) and look up the memory (`read_input`, `find_targets`). The model applies the targets to its answer
(`apply_targets`).
Source: Triton, docs/protocol/extension_classification.md and extension_shared_memory.md.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from serving.core.datatypes import Datatype, Tensor, datatype_of, deserialize_bytes, serialize_bytes
from serving.core.device_tensor import DeviceTensor, host_array
from serving.core.errors import ServingError, invalid
from serving.core.in_flight import InFlightRequest
from serving.core.output_target import MemoryRange, OutputRule, OutputTarget, RegionMemory
from serving.core.response import Answer, InferenceResponse
from serving.extensions.classification import top_classes
from serving.extensions.shared_memory import SharedMemory

if TYPE_CHECKING:
    import torch

_LIMIT = 1 << 62
# The instance's thread writes outputs of at least this many bytes. The loop writes smaller outputs.
_WRITTEN_BY_INSTANCE = 4 << 20


def memory_range_of(tensor: str, parameters: Mapping[str, object]) -> MemoryRange | None:
    """Return the memory range that a tensor's parameters name, or None if they name no region. Raises INVALID_ARG if a
    parameter is missing or wrong.

    tensor: the name of the tensor for messages, such as "input 'x'"."""
    if "shared_memory_region" not in parameters:
        return None
    name = parameters["shared_memory_region"]
    if not isinstance(name, str) or not name:
        raise invalid(f"{tensor}: expected 'shared_memory_region' to be the name of a region")
    if "shared_memory_byte_size" not in parameters:
        raise invalid(f"{tensor}: 'shared_memory_byte_size' must be given with 'shared_memory_region'")
    numbers = []
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        value = parameters.get(key, 0)
        if type(value) is not int or not 0 <= value < _LIMIT:
            raise invalid(f"{tensor}: expected '{key}' to be a whole number of bytes")
        numbers.append(value)
    return MemoryRange(name, *numbers)


def read_input(
    memory: SharedMemory, model: str, name: str, row: Datatype, shape: tuple[int, ...], place: MemoryRange
) -> Tensor:
    """Return an input from shared memory on the host or on a GPU: a view, or a copy if it is BYTES, BOOL or not aligned.
    Raises NOT_FOUND if the region is unknown, and INVALID_ARG if datatype and shape do not fit the bytes."""
    data = memory.view(*place)
    count = math.prod(shape)
    if row.itemsize and count * row.itemsize != place.byte_size:
        raise invalid(
            f"input byte size mismatch for input '{name}' for model '{model}'. Expected {count * row.itemsize}, got "
            f"{place.byte_size} in 'shared_memory_byte_size'"
        )
    try:
        if not isinstance(data, np.ndarray):
            if row.itemsize:
                tensor: Tensor = DeviceTensor.from_bytes(data, row.dtype, shape)  # type: ignore[assignment]
                return tensor
            data = data.cpu().numpy()
        return _as_tensor(data, row, shape, count)
    except ValueError:
        raise invalid(f"input '{name}' has the impossible shape {list(shape)}") from None


def _as_tensor(data: NDArray[np.uint8], row: Datatype, shape: tuple[int, ...], count: int) -> Tensor:
    if row.itemsize == 0:
        return deserialize_bytes(data.data, count).reshape(shape)
    if row.dtype.kind == "b":
        return np.not_equal(data.reshape(shape), 0)  # a byte other than 0 and 1 is no valid numpy boolean
    array: Tensor = np.ndarray(shape, row.dtype, data.data) if count else np.empty(shape, row.dtype)
    return array if array.flags.aligned else array.copy()


def output_rule(name: str, parameters: Mapping[str, object]) -> OutputRule | None:
    """Return the rule in an output's parameters, or None if the client wants the tensor. Raises INVALID_ARG if a parameter is
    wrong."""
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < 1 << 32:
        raise invalid(f"output '{name}': expected 'classification' to be a number of classes")
    place = memory_range_of(f"output '{name}'", parameters)
    if classes and place is not None:
        raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'classification'")
    return OutputRule(classes, place) if classes or place is not None else None


def find_targets(
    rules: Mapping[str, OutputRule], memory: SharedMemory, inputs: Sequence[MemoryRange | None]
) -> dict[str, OutputTarget]:
    """Look up the memory that the rules name. Raises NOT_FOUND if a region does not exist, INVALID_ARG if a region is too
    small.

    inputs: the memory ranges of the request's inputs, or None for an input that is not in shared memory."""
    return {name: _target(rule, memory, inputs) for name, rule in rules.items()}


def all_on_device(targets: Mapping[str, OutputTarget], requested_outputs: Sequence[str]) -> bool:
    """Return whether all requested outputs are written to GPU memory, so that the tensors may stay on GPUs."""
    memories = [targets[name].memory for name in requested_outputs if name in targets]
    on_host = any(memory is None or isinstance(memory, np.ndarray) for memory in memories)
    return 0 < len(memories) == len(requested_outputs) and not on_host


def _target(rule: OutputRule, memory: SharedMemory, inputs: Sequence[MemoryRange | None]) -> OutputTarget:
    if rule.memory is None:
        return OutputTarget(rule)
    exclusive = not any(one is not None and memory.overlap(rule.memory, one) for one in inputs)
    return OutputTarget(rule, memory.view(*rule.memory), exclusive)


def write_large_outputs(requests: Sequence[InFlightRequest], answers: Sequence[Answer]) -> None:
    """Write large outputs into shared memory of the host, on the thread that computed them, so that the loop is not blocked.
    Errors are ignored, because `apply_targets` tries again and returns them."""
    for request, answer in zip(requests, answers, strict=True):
        targets = request.asked.output_targets
        if not targets or request.finished or not isinstance(answer, InferenceResponse):
            continue
        for name, target in targets.items():
            tensor = answer.outputs.get(name)
            if not isinstance(tensor, np.ndarray) or not isinstance(target.memory, np.ndarray):
                continue
            if tensor.nbytes >= _WRITTEN_BY_INSTANCE:
                with contextlib.suppress(ServingError):
                    _write_output(answer, name, tensor, target)


def apply_targets(
    response: InferenceResponse,
    targets: Mapping[str, OutputTarget],
    labels: Mapping[str, Sequence[str]],
    batched: bool,
) -> InferenceResponse | ServingError:
    """Replace tensors by class strings, and write tensors into shared memory. Return the response or an error.

    labels: output -> the names of its classes. batched: outputs have a batch dimension."""
    try:
        for name, target in targets.items():
            tensor = response.outputs.get(name)
            if tensor is None or (response.in_shared_memory and name in response.in_shared_memory):
                continue
            if target.rule.classes:
                response.outputs[name] = top_classes(name, tensor, target.rule.classes, labels.get(name, ()), batched)
            else:
                _write_output(response, name, tensor, target)
    except ServingError as error:
        return error
    return response


def _write_output(response: InferenceResponse, name: str, tensor: Tensor, target: OutputTarget) -> None:
    place, memory = target.rule.memory, target.memory
    assert place is not None
    assert memory is not None
    size = _write(name, tensor, memory)
    if response.in_shared_memory is None:
        response.in_shared_memory = {}
    response.in_shared_memory[name] = place._replace(byte_size=size)


def _write(name: str, tensor: Tensor, memory: "RegionMemory") -> int:
    """Copy a tensor into shared memory, unless it is there. Return its bytes. Raises INVALID_ARG if it does not fit."""
    row = datatype_of(tensor)
    data = np.frombuffer(serialize_bytes(tensor), np.uint8) if row.itemsize == 0 else None
    size = tensor.nbytes if data is None else data.nbytes
    if size > len(memory):
        raise invalid(
            f"output '{name}' has {size} bytes, but 'shared_memory_byte_size' gives it {len(memory)} bytes of shared memory"
        )
    destination = memory[:size]
    if not isinstance(destination, np.ndarray):
        _write_to_gpu(destination, tensor if data is None else data)
    elif data is not None:
        destination[:] = data
    elif size and not _lies_in(tensor, destination):
        # np.ndarray, because the destination need not be aligned for the datatype
        np.copyto(np.ndarray(tensor.shape, tensor.dtype, destination.data), host_array(tensor), casting="no")
    return size


def _lies_in(tensor: Tensor, memory: NDArray[np.uint8]) -> bool:
    """Return whether the tensor is already in this memory, because the backend has written it there."""
    return isinstance(tensor, np.ndarray) and tensor.flags.c_contiguous and tensor.ctypes.data == memory.ctypes.data


def _write_to_gpu(memory: "torch.Tensor", tensor: Tensor | DeviceTensor) -> None:
    import torch

    if isinstance(tensor, DeviceTensor):
        tensor.copy_to(memory)
    else:
        flat = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
        memory.copy_(torch.from_numpy(flat if flat.flags.writeable else flat.copy()))

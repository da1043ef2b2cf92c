"""What a client wants done with one output: the top classes of it, or to have it in shared memory.

Neutral of the protocol: both frontends make the targets from an output's parameters, and the model applies them to its answer.
Source: Triton, docs/protocol/extension_classification.md and extension_shared_memory.md.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.core.datatypes import Datatype, datatype_of, deserialize_bytes, serialize_bytes
from serving.core.device_tensor import DeviceTensor, host_array
from serving.core.errors import ServingError, invalid
from serving.core.request import InferenceRequest, InferenceResponse, Placed, Tensor
from serving.extensions.classification import top_classes
from serving.extensions.shared_memory import SharedMemory

_LIMIT = 1 << 62
PLACED_FROM = 4 << 20  # bytes; the loop copies a smaller output while the instance computes the next batch


class Region(NamedTuple):
    """`byte_size` bytes of a registered region, from `offset` on."""

    name: str
    offset: int
    byte_size: int


class OutputRule(NamedTuple):
    """The parameters of a requested output, checked. Shared between equal requests."""

    classes: int = 0  # 0: the tensor itself
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """A rule with its region found; `memory` (uint8 [byte_size]) stays mapped as long as the request lives. `alone`: no
    input of the request lies there too, so that the model may write to it while it runs."""

    rule: OutputRule
    memory: Any = field(default=None, repr=False)
    alone: bool = False


def region_of(what: str, parameters: Mapping[str, Any]) -> Region | None:
    """The region that a tensor's parameters name; None where they name none, INVALID_ARG for half of one."""
    if "shared_memory_region" not in parameters:
        return None
    name = parameters["shared_memory_region"]
    if not isinstance(name, str) or not name:
        raise invalid(f"{what}: expected 'shared_memory_region' to be the name of a region")
    if "shared_memory_byte_size" not in parameters:
        raise invalid(f"{what}: 'shared_memory_byte_size' must be given with 'shared_memory_region'")
    numbers = []
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        value = parameters.get(key, 0)
        if type(value) is not int or not 0 <= value < _LIMIT:
            raise invalid(f"{what}: expected '{key}' to be a whole number of bytes")
        numbers.append(value)
    return Region(name, *numbers)


def read_tensor(
    memory: SharedMemory, model: str, name: str, row: Datatype, shape: tuple[int, ...], region: Region
) -> Tensor:
    """An input that lies in a region, on the host or on a GPU: a view of it, except for BYTES and BOOL and where it is not
    aligned."""
    data = memory.view(*region)
    count = math.prod(shape)
    if row.itemsize and count * row.itemsize != region.byte_size:
        raise invalid(
            f"input byte size mismatch for input '{name}' for model '{model}'. Expected {count * row.itemsize}, got "
            f"{region.byte_size} in 'shared_memory_byte_size'"
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


def _as_tensor(data: NDArray[np.uint8], row: Datatype, shape: tuple[int, ...], count: int) -> NDArray[Any]:
    if row.itemsize == 0:
        return deserialize_bytes(data.data, count).reshape(shape)
    if row.dtype.kind == "b":
        return np.not_equal(data.reshape(shape), 0)  # a byte other than 0 and 1 is no valid numpy boolean
    array: NDArray[Any] = np.ndarray(shape, row.dtype, data.data) if count else np.empty(shape, row.dtype)
    return array if array.flags.aligned else array.copy()


def output_rule(name: str, parameters: Mapping[str, Any]) -> OutputRule | None:
    """What an output's parameters ask for; None where it is just the tensor."""
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < 1 << 32:
        raise invalid(f"output '{name}': expected 'classification' to be a number of classes")
    region = region_of(f"output '{name}'", parameters)
    if classes and region is not None:
        raise invalid(f"output '{name}' can't set both 'shared_memory_region' and 'classification'")
    return OutputRule(classes, region) if classes or region is not None else None


def aim(
    request: InferenceRequest, rules: Mapping[str, OutputRule], memory: SharedMemory, inputs: Sequence[Region | None]
) -> None:
    """Set the request's targets; NOT_FOUND or INVALID_ARG where a region does not exist or is too small. `inputs`: where its
    inputs lie."""
    request.targets = {name: _target(rule, memory, inputs) for name, rule in rules.items()}
    places = [request.targets[name].memory for name in request.requested if name in request.targets]
    on_host = any(place is None or isinstance(place, np.ndarray) for place in places)
    request.device_outputs = 0 < len(places) == len(request.requested) and not on_host


def _target(rule: OutputRule, memory: SharedMemory, inputs: Sequence[Region | None]) -> OutputTarget:
    region = rule.region
    if region is None:
        return OutputTarget(rule)
    alone = not any(one is not None and memory.overlap(region, one) for one in inputs)
    return OutputTarget(rule, memory.view(*region), alone)


def place_outputs(
    requests: Sequence[InferenceRequest], answers: Sequence[InferenceResponse | ServingError | None]
) -> None:
    """Write large outputs into regions on the host, on the thread that computed them: they would hold up the loop. What is
    wrong with one is left for `deliver` to say."""
    for request, answer in zip(requests, answers, strict=True):
        if not request.targets or request.finished or not isinstance(answer, InferenceResponse):
            continue
        for name, target in request.targets.items():
            array = answer.outputs.get(name)
            if not isinstance(array, np.ndarray) or not isinstance(target.memory, np.ndarray):
                continue
            if array.nbytes >= PLACED_FROM:
                with contextlib.suppress(ServingError):
                    _place(answer, name, array, target)


def _place(response: InferenceResponse, name: str, array: Tensor, target: OutputTarget) -> None:
    region = target.rule.region
    assert region is not None
    size = _write(name, array, target)
    if response.placed is None:
        response.placed = {}
    response.placed[name] = Placed(region.name, region.offset, size)


def deliver(
    response: InferenceResponse,
    targets: Mapping[str, OutputTarget],
    labels: Mapping[str, Sequence[str]],
    batched: bool,
) -> InferenceResponse | ServingError:
    """Apply the targets: class strings in place of a tensor, or the tensor written into its region."""
    try:
        for name, target in targets.items():
            array = response.outputs.get(name)
            if array is None or (response.placed and name in response.placed):
                continue
            if target.rule.classes:
                response.outputs[name] = top_classes(name, array, target.rule.classes, labels.get(name, ()), batched)
            else:
                _place(response, name, array, target)
    except ServingError as error:
        return error
    return response


def _write(name: str, array: Tensor, target: OutputTarget) -> int:
    """Copy once, and only where it fits whole; the number of bytes."""
    row = datatype_of(array)
    data = np.frombuffer(serialize_bytes(array), np.uint8) if row.itemsize == 0 else None
    size = array.nbytes if data is None else data.nbytes
    if size > len(target.memory):
        raise invalid(
            f"output '{name}' has {size} bytes, but 'shared_memory_byte_size' gives it {len(target.memory)} bytes of "
            "shared memory"
        )
    room = target.memory[:size]
    if not isinstance(room, np.ndarray):
        _write_to_gpu(room, array if data is None else data)
    elif data is not None:
        room[:] = data
    elif size and not _lies_in(array, room):
        # as bytes, since an offset need not be aligned for the datatype
        np.copyto(np.ndarray(array.shape, array.dtype, room.data), host_array(array), casting="no")
    return size


def _lies_in(array: Tensor, room: NDArray[np.uint8]) -> bool:
    """Whether the backend has written it there itself."""
    return isinstance(array, np.ndarray) and array.flags.c_contiguous and array.ctypes.data == room.ctypes.data


def _write_to_gpu(room: Any, array: Any) -> None:
    import torch

    if isinstance(array, DeviceTensor):
        array.copy_to(room)
    else:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        room.copy_(torch.from_numpy(flat if flat.flags.writeable else flat.copy()))

"""Makes arrays from the input tensors of a ModelInferRequest: raw bytes, typed contents or shared memory."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from serving.core.datatypes import DATATYPES, Datatype, Tensor, datatype, deserialize_bytes
from serving.core.errors import ServingError, invalid
from serving.core.output_target import MemoryRange
from serving.extensions.shared_memory import SharedMemory
from serving.extensions.tensor_parameters import memory_range_of, read_input

MAX_DIMS = 32
CONTENTS_FIELDS = sorted({row.contents for row in DATATYPES.values() if row.contents})


class InputSpec(NamedTuple):
    """The declaration of one input. elements: the number of elements. region: its place in shared memory, if it has one."""

    name: str
    row: Datatype
    shape: tuple[int, ...]
    elements: int
    region: MemoryRange | None = None


def input_spec(tensor: pb.ModelInferRequest.InferInputTensor, model_name: str) -> InputSpec:
    """Check an InferInputTensor and return its declaration. This allocates no memory, because the claimed shape may be huge."""
    if len(tensor.shape) > MAX_DIMS:
        raise invalid(
            f"input '{tensor.name}' for model '{model_name}' has the impossible shape of {len(tensor.shape)} dimensions; "
            f"expected at most {MAX_DIMS}"
        )
    shape = tuple(tensor.shape)
    if any(dim < 0 for dim in shape):
        raise invalid(f"input '{tensor.name}' for model '{model_name}' has shape {list(shape)}; expected dims >= 0")
    region = None
    if tensor.parameters:
        region = memory_range_of(f"input '{tensor.name}'", plain_parameters(tensor.parameters))
        if region is not None and tensor.HasField("contents"):
            raise invalid(
                f"input '{tensor.name}' of model '{model_name}' can't set both 'contents' and 'shared_memory_region'"
            )
    return InputSpec(tensor.name, datatype(tensor.datatype), shape, math.prod(shape), region)


def plain_parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, object]:
    """Return InferParameters as Python values. A parameter without a value becomes None."""
    return {key: getattr(value, value.WhichOneof("parameter_choice") or "", None) for key, value in parameters.items()}


def from_raw(data: "bytes | memoryview", spec: InputSpec, model_name: str) -> Tensor:
    """Return the array [spec.shape] with this raw data, in the V2 protocol's encoding.

    The array is a view of `data`, unless the datatype is BYTES or `data` is not aligned for the datatype.
    """
    if not spec.row.itemsize:
        try:
            return _reshape(deserialize_bytes(data, spec.elements), spec, model_name)
        except ServingError as error:
            raise invalid(f"input '{spec.name}' for model '{model_name}': {error.message}") from None
    if len(data) != spec.elements * spec.row.itemsize:
        raise _size_mismatch(spec, model_name, len(data))
    if not spec.elements:
        return _reshape(np.empty(0, spec.row.dtype), spec, model_name)
    array = np.frombuffer(data, spec.row.dtype)
    if not isinstance(data, bytes) and not array.flags.aligned:
        array = array.copy()
    return _reshape(array, spec, model_name)


def from_contents(tensor: pb.ModelInferRequest.InferInputTensor, spec: InputSpec, model_name: str) -> Tensor:
    """Return the array [spec.shape] of an InferInputTensor's typed `contents`. Raises INVALID_ARG if values do not fit the
    datatype."""
    used = [name for name in CONTENTS_FIELDS if len(getattr(tensor.contents, name))]
    if used and used != [spec.row.contents]:
        raise invalid(
            f"unexpected explicit tensor data in {', '.join(used)} for input tensor '{spec.name}' for model "
            f"'{model_name}' of type '{spec.row.name}', expected {spec.row.contents or 'raw_input_contents'}"
        )
    values = getattr(tensor.contents, used[0]) if used else ()
    if len(values) != spec.elements:
        if spec.row.itemsize:
            raise _size_mismatch(spec, model_name, len(values) * spec.row.itemsize)
        raise invalid(
            f"expected {spec.elements} elements for input '{spec.name}' for model '{model_name}', got {len(values)}"
        )
    if not spec.row.itemsize:
        array = np.empty(spec.elements, np.object_)
        array[:] = list(values)
        return _reshape(array, spec, model_name)
    return _reshape(_narrowed(values, spec, model_name), spec, model_name)


def _narrowed(values: Sequence[int | float | bool], spec: InputSpec, model_name: str) -> Tensor:
    if spec.row.dtype.kind not in "iu" or spec.row.itemsize >= 4:
        return np.fromiter(values, spec.row.dtype, len(values))
    array = np.fromiter(values, np.int64, len(values))
    limits = np.iinfo(spec.row.dtype)
    if len(array) and (array.min() < limits.min or array.max() > limits.max):
        raise invalid(
            f"input '{spec.name}' for model '{model_name}' has values from {array.min()} to {array.max()}; "
            f"{spec.row.name} holds {limits.min} to {limits.max}"
        )
    return array.astype(spec.row.dtype)


def _reshape(array: Tensor, spec: InputSpec, model_name: str) -> Tensor:
    try:
        return array.reshape(spec.shape)
    except ValueError:
        raise invalid(
            f"input '{spec.name}' for model '{model_name}' has the impossible shape {list(spec.shape)}"
        ) from None


def _size_mismatch(spec: InputSpec, model_name: str, got: int) -> ServingError:
    expected = spec.elements * spec.row.itemsize
    return invalid(
        f"input byte size mismatch for input '{spec.name}' for model '{model_name}'. Expected {expected}, got {got}"
    )


def typed_inputs(message: pb.ModelInferRequest, specs: list[InputSpec], memory: SharedMemory) -> dict[str, Tensor]:
    """Return the inputs, by name, of a message whose tensors have typed contents or are in shared memory."""
    inputs = {}
    for tensor, spec in zip(message.inputs, specs, strict=True):
        if spec.region is not None:
            inputs[spec.name] = read_input(memory, message.model_name, spec.name, spec.row, spec.shape, spec.region)
            continue
        if not tensor.HasField("contents") and spec.elements:
            raise invalid(
                f"unable to find data for input tensor '{spec.name}' for model '{message.model_name}' in request."
            )
        inputs[spec.name] = from_contents(tensor, spec, message.model_name)
    return inputs

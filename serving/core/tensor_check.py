"""Checks requests against a model's tensors, and applies `reshape` between the protocol's shapes and those of the model.

Source: Triton, docs/user_guide/model_configuration.md (Inputs and Outputs, Reshape, Maximum Batch Size).
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInput, ModelOutput

from serving.core.datatypes import BY_CONFIG, Dtype, Tensor, datatype_of
from serving.core.errors import ServingError, internal, invalid
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse


class _Input(NamedTuple):
    name: str
    datatype: str
    dtype: Dtype
    dims: tuple[int, ...]
    variable: bool
    optional: bool
    batched: bool  # True if the tensor has the batch dimension
    ragged: bool
    reshape: tuple[int, ...] | None


class _Reshape(NamedTuple):
    """Maps shapes of a tensor: the sizes at the -1 dims of `given` replace the -1 dims of `wanted`, in order."""

    given: tuple[int, ...]
    wanted: tuple[int, ...]

    @classmethod
    def of(cls, output: ModelOutput) -> "_Reshape":
        return cls(tuple(output.reshape.shape), tuple(output.dims))

    def apply(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the wanted shape for a tensor of this shape, or None if this shape does not fit."""
        if not _matches(shape, self.given):
            known = math.prod(dim for dim in self.wanted if dim != -1)
            if self.wanted.count(-1) == 1 and known and math.prod(shape) % known == 0:
                return tuple(math.prod(shape) // known if dim == -1 else dim for dim in self.wanted)
            return self.wanted if math.prod(shape) == math.prod(self.wanted) else None
        sizes = iter([size for size, dim in zip(shape, self.given, strict=True) if dim == -1])
        return tuple(next(sizes, -1) if dim == -1 else dim for dim in self.wanted)


class TensorCheck:
    """Checks the requests to one model, and reshapes its inputs and outputs. Built once from a complete configuration."""

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._max_batch = config.max_batch_size
        self._inputs = [_prepare(tensor, config.max_batch_size > 0) for tensor in config.input]
        self._expected = [(one.name, one.dtype, one.dims, one.batched) for one in self._inputs]
        self._by_name = {tensor.name: tensor for tensor in self._inputs}
        self._outputs = frozenset(output.name for output in config.output)
        self._reshaped_outputs = {o.name: _Reshape.of(o) for o in config.output if o.HasField("reshape")}
        self.reshapes_outputs = bool(self._reshaped_outputs)
        self._reshapes = any(tensor.reshape is not None for tensor in self._inputs)
        # The values of a shape tensor apply to one request only, so the request cannot share a batch.
        self._alone = config.max_batch_size > 0 and any(tensor.is_shape_tensor for tensor in config.input)
        self._keyed = any(tensor.optional or (tensor.variable and not tensor.ragged) for tensor in self._inputs)

    def request(self, request: InFlightRequest) -> None:
        """Check the tensors and set the scheduler's fields: `batch_size`, `batch_key`, and `inputs` if the model takes other
        shapes than clients send. Raises INVALID_ARG for the first fault."""
        if request.asked.from_ensemble:
            request.inputs = {name: self._as_step(name, array) for name, array in request.inputs.items()}
        inputs = request.inputs
        rows = 0
        seen = 0
        for name, dtype, dims, batched in self._expected:
            array = inputs.get(name)
            if array is None:
                if self._by_name[name].optional:
                    continue
                raise self._missing(inputs)
            seen += 1
            given = array.dtype
            if given is not dtype and given != dtype:
                raise _wrong_datatype(self._model, self._by_name[name], array)
            shape = array.shape
            if batched:
                if not shape:
                    raise _wrong_shape(self._model, self._by_name[name], shape)
                if rows == 0:
                    rows = shape[0]
                elif shape[0] != rows:
                    raise invalid(
                        f"input '{name}' has batch size {shape[0]}, but another input of the request has {rows}"
                    )
                shape = shape[1:]
            if shape != dims and not (self._by_name[name].variable and _matches(shape, dims)):
                raise _wrong_shape(self._model, self._by_name[name], array.shape)
        if seen != len(inputs):
            self._refuse_unknown(inputs)
        if self._max_batch:
            if not 1 <= rows <= self._max_batch:
                raise invalid(
                    f"inference request batch-size must be from 1 to {self._max_batch} for '{self._model}', got {rows}"
                )
            request.batch_size = rows
        for name in request.requested_outputs:
            if name not in self._outputs:
                known = ", ".join(sorted(self._outputs))
                raise invalid(f"unexpected inference output '{name}' for model '{self._model}', which has {known}")
        if self._alone:
            request.batch_key = object()
        elif self._keyed:
            request.batch_key = tuple(
                (name, array.shape[1:]) for name, array in inputs.items() if not self._by_name[name].ragged
            )
        if self._reshapes:
            request.inputs = {name: _to_model(array, self._by_name[name]) for name, array in inputs.items()}

    def _as_step(self, name: str, array: Tensor) -> Tensor:
        expected = self._by_name.get(name)
        return array if expected is None else with_rank(array, len(expected.dims), expected.batched)

    def response(self, answer: "InferenceResponse | ServingError") -> "InferenceResponse | ServingError":
        """Return the answer with its outputs in the shapes that the configuration declares for clients, or INTERNAL if an
        output does not fit."""
        if not self._reshaped_outputs or isinstance(answer, ServingError):
            return answer
        for name, reshape in self._reshaped_outputs.items():
            output = answer.outputs.get(name)
            if output is None:
                continue
            leading = output.shape[:1] if self._max_batch else ()
            shape = reshape.apply(output.shape[len(leading) :])
            if shape is None:
                return internal(
                    f"model '{self._model}' gave output '{name}' the shape {list(output.shape)}, but "
                    f"the reshape of its configuration expects {list(reshape.given)}"
                )
            answer.outputs[name] = output.reshape(leading + shape)
        return answer

    def _missing(self, inputs: dict[str, Tensor]) -> ServingError:
        """Return the error of a request that lacks an input, in Triton's words, because clients compare them."""
        required = [tensor.name for tensor in self._inputs if not tensor.optional]
        unknown = [name for name in inputs if name not in self._by_name]
        # Triton checks the number of inputs first.
        if unknown and len(required) <= len(inputs) <= len(self._inputs):
            lacking = _listed([name for name in required if name not in inputs], " and ")
            place = "its place" if len(unknown) == 1 else f"place of {_listed(unknown, ' and ')}"
            return invalid(
                f"unexpected inference input {_listed(unknown[:1])} for model '{self._model}', which needs {lacking} in {place}"
            )
        some = len(required) < len(self._inputs)
        wanted = (
            f"number of inputs between {len(required)} and {len(self._inputs)}" if some else f"{len(required)} inputs"
        )
        missing = _listed(name for name in required if name not in inputs)
        return invalid(
            f"expected {wanted} but got {len(inputs)} inputs for model '{self._model}'. Got input(s) [{_listed(inputs)}], but "
            f"missing required input(s) [{missing}]. Please provide all required input(s)."
        )

    def _refuse_unknown(self, inputs: dict[str, Tensor]) -> None:
        unknown = next(name for name in inputs if name not in self._by_name)
        known = ", ".join(tensor.name for tensor in self._inputs)
        raise invalid(f"unexpected inference input {_listed([unknown])} for model '{self._model}', which has {known}")


def _listed(names: Iterable[str], between: str = ",") -> str:
    return between.join(f"'{name[:200]}'" for name in names)


def with_rank(array: Tensor, dims: int, batched: bool) -> Tensor:
    """Return a tensor for the next model of an ensemble: with a batch dimension of 1 added or removed if necessary.

    dims: the number of dimensions without the batch dimension. batched: whether the result has a batch dimension."""
    if batched and array.ndim == dims:
        return array.reshape((1, *array.shape))
    if not batched and array.ndim == dims + 1 and array.shape[0] == 1:
        return array.reshape(array.shape[1:])
    return array


def _prepare(tensor: ModelInput, batching: bool) -> _Input:
    row = BY_CONFIG[tensor.data_type]
    dims = tuple(tensor.dims)
    reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
    return _Input(
        name=tensor.name,
        datatype=row.name,
        dtype=row.dtype,
        dims=dims,
        variable=any(dim < 0 for dim in dims),
        optional=tensor.optional,
        batched=batching and not tensor.is_shape_tensor,
        ragged=tensor.allow_ragged_batch,
        reshape=reshape,
    )


def wire_shape(tensor: "ModelInput | ModelOutput", config: ModelConfig) -> list[int]:
    """Return a tensor's shape as metadata shows it: -1 for the batch dimension, if any, and the configuration's dims."""
    batched = config.max_batch_size > 0 and not tensor.is_shape_tensor
    return [-1, *tensor.dims] if batched else list(tensor.dims)


def _matches(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims, strict=True))


def _to_model(array: Tensor, tensor: _Input) -> Tensor:
    """Reshape an input for the model: the request's sizes at the -1 dims replace the -1 dims of `reshape`, in order."""
    if tensor.reshape is None:
        return array
    own = array.shape[1:] if tensor.batched else array.shape
    sizes = iter([size for size, dim in zip(own, tensor.dims, strict=True) if dim == -1])
    target = tuple(next(sizes) if dim == -1 else dim for dim in tensor.reshape)
    return array.reshape(array.shape[:1] + target if tensor.batched else target)


def _wrong_datatype(model: str, expected: _Input, array: Tensor) -> ServingError:
    got = datatype_of(array).name
    return invalid(
        f"input '{expected.name}' of model '{model}' has data-type {got}, but the model expects {expected.datatype}"
    )


def _wrong_shape(model: str, expected: _Input, shape: tuple[int, ...]) -> ServingError:
    dims = [-1, *expected.dims] if expected.batched else list(expected.dims)
    return invalid(
        f"unexpected shape for input '{expected.name}' for model '{model}'. Expected {dims}, got {list(shape)}"
    )

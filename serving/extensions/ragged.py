"""Ragged batches: joins inputs of unequal shapes end to end, and makes batch inputs that locate each request in them.

A ragged input reaches the model as one dimension with the elements of all requests. The server makes a batch input when it
forms the batch, and splits a batch output by the shapes of an input, not by rows.
Source: Triton, docs/user_guide/ragged_batching.md, and BatchInput and BatchOutput in model_config.proto.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import BatchInput, ModelConfig

from serving.core.batch import Batch
from serving.core.datatypes import BY_CONFIG, Dtype, Tensor
from serving.core.device_tensor import concatenate
from serving.core.errors import internal
from serving.core.in_flight import InFlightRequest

# Maps the shapes of the source input in each request, including the batch dimension, to the values of the batch input.
Rule = Callable[[list[tuple[int, ...]]], NDArray[np.int64]]


def _counts(shapes: list[tuple[int, ...]]) -> NDArray[np.int64]:
    return np.array([np.prod(shape, dtype=np.int64) for shape in shapes], np.int64)


def _item_shapes(shapes: list[tuple[int, ...]]) -> NDArray[np.int64]:
    """Return the shape of each row without the batch dimension: [rows of the batch, dims of one item]."""
    rows = [shape[1:] for shape in shapes for _ in range(shape[0])]
    return np.array(rows, np.int64).reshape(len(rows), -1)


RULES: dict[int, Rule] = {
    BatchInput.BATCH_ELEMENT_COUNT: _counts,
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT: lambda shapes: np.cumsum(_counts(shapes)),
    BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO: lambda shapes: np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(_counts(shapes))]
    ),
    # the model uses only the shape of this tensor, not its values
    BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE: lambda shapes: np.zeros(int(_counts(shapes).max()), np.int64),
    BatchInput.BATCH_ITEM_SHAPE: _item_shapes,
    BatchInput.BATCH_ITEM_SHAPE_FLATTEN: lambda shapes: _item_shapes(shapes).ravel(),
}


class _Made(NamedTuple):
    names: list[str]
    dtype: Dtype
    source: str
    rule: Rule


class RaggedLayout:
    """Gathers and scatters batches of a model whose configuration has ragged inputs, batch inputs or batch outputs."""

    def __init__(self, config: ModelConfig) -> None:
        self._ragged = {tensor.name for tensor in config.input if tensor.allow_ragged_batch}
        self._made = [
            _Made(list(one.target_name), BY_CONFIG[one.data_type].dtype, one.source_input[0], RULES[one.kind])
            for one in config.batch_input
        ]
        self._by_shape = {name: one.source_input[0] for one in config.batch_output for name in one.target_name}

    @staticmethod
    def needed(config: ModelConfig) -> bool:
        return bool(config.batch_input or config.batch_output or any(one.allow_ragged_batch for one in config.input))

    def gather(self, batch: Batch) -> dict[str, Tensor]:
        """Return the model's inputs: ragged ones as [elements], others joined by the batch dimension, and batch inputs."""
        requests = batch.requests
        inputs = {name: self._joined(name, requests) for name in requests[0].inputs}
        for made in self._made:
            shapes = [request.inputs[made.source].shape for request in requests if made.source in request.inputs]
            values = made.rule(shapes).astype(made.dtype)
            inputs.update(dict.fromkeys(made.names, values))
        return inputs

    def scatter(self, batch: Batch, outputs: dict[str, Tensor], model_name: str, model_version: int) -> None:
        """Split batch outputs by the shapes of their source input, all other outputs by rows."""
        by_rows = {name: output for name, output in outputs.items() if name not in self._by_shape}
        batch.scatter(by_rows, model_name, model_version)
        for name, source in self._by_shape.items():
            if name in outputs:
                self._split(batch, name, outputs[name].reshape(-1), source)

    def _joined(self, name: str, requests: list[InFlightRequest]) -> Tensor:
        arrays = [request.inputs[name] for request in requests]
        if name in self._ragged:
            return concatenate([array.reshape(-1) for array in arrays])
        return arrays[0] if len(arrays) == 1 else concatenate(arrays)

    def _split(self, batch: Batch, name: str, flat: Tensor, source: str) -> None:
        shapes = [request.inputs[source].shape for request in batch.requests]
        ends = np.cumsum(_counts(shapes))
        if len(flat) != ends[-1]:
            raise internal(
                f"output '{name}' has {len(flat)} elements, but input '{source}' of the batch has {ends[-1]}"
            )
        for request, answer, shape, end in zip(batch.requests, batch.responses, shapes, ends, strict=True):
            if (
                answer is not None
                and not isinstance(answer, Exception)
                and name in (request.requested_outputs or (name,))
            ):
                answer.outputs[name] = flat[end - int(np.prod(shape, dtype=np.int64)) : end].reshape(shape)

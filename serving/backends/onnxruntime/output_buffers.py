"""Lets ONNX Runtime write outputs directly into a client's shared memory, instead of into the server's memory.

Direct writing is possible for a batch of one request if all its outputs go to shared memory, and have shapes in the file.
"""

import math

import numpy as np
import onnxruntime as ort
from tritonclient.grpc.model_config_pb2 import TYPE_BF16, TYPE_STRING, ModelConfig

from serving.backends.channel.tensors import DType
from serving.core.batch import Batch
from serving.core.datatypes import BY_CONFIG, Tensor
from serving.core.output_target import OutputTarget

MIN_BYTES = 4 << 20  # the least size of all outputs together; a binding takes 25 us, like a copy of 1.5 MB

OutputBuffers = dict[str, Tensor]
"""Memory for each output of a batch, as an array of the output's shape and dtype."""


class PreallocatedOutputs:
    """Finds a batch's buffers for the outputs whose shapes are in the model's file."""

    def __init__(self, config: ModelConfig, session: ort.InferenceSession) -> None:
        self._batches = config.max_batch_size > 0
        in_file = {node.name: list(node.shape)[self._batches :] for node in session.get_outputs()}
        self._outputs: dict[str, tuple[DType, tuple[int, ...]]] = {
            output.name: (BY_CONFIG[output.data_type].dtype, tuple(output.dims))
            for output in config.output
            if output.data_type not in (TYPE_BF16, TYPE_STRING) and list(output.dims) == in_file.get(output.name)
        }

    def buffers(self, batch: Batch) -> OutputBuffers | None:
        """Return the client's memory for every output of a batch, or None if an output has none or the outputs are small."""
        request = batch.requests[0]
        targets = request.asked.output_targets
        if not targets or not request.requested_outputs or len(batch.requests) > 1:
            return None
        buffers: OutputBuffers = {}
        for name in request.requested_outputs:
            buffer = self._buffer(name, targets.get(name), batch.size)
            if buffer is None:
                return None
            buffers[name] = buffer
        return buffers if sum(buffer.nbytes for buffer in buffers.values()) >= MIN_BYTES else None

    def _buffer(self, name: str, target: OutputTarget | None, rows: int) -> Tensor | None:
        if (
            target is None
            or not target.exclusive
            or name not in self._outputs
            or not isinstance(target.memory, np.ndarray)
        ):
            return None
        dtype, dims = self._outputs[name]
        shape = (rows, *dims) if self._batches else dims
        if math.prod(shape) * dtype.itemsize > len(target.memory):
            return None
        buffer: Tensor = np.ndarray(shape, dtype, target.memory.data)
        return buffer if buffer.flags.aligned else None


def bind(binding: ort.IOBinding, buffers: OutputBuffers) -> None:
    """Let a run write its outputs into the buffers."""
    for name, buffer in buffers.items():
        binding.bind_output(name, "cpu", 0, buffer.dtype, buffer.shape, buffer.ctypes.data)

"""Outputs that ONNX Runtime writes straight into a client's shared memory: the server needs no memory of its own for them.

Only where every output of a batch of one request goes there and the model's file says its shape: a buffer must have it.
"""

import math
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import TYPE_BF16, TYPE_STRING, ModelConfig

from serving.core.batch import Batch
from serving.core.datatypes import BY_CONFIG
from serving.core.output_target import OutputTarget

ROOM_FROM = 4 << 20  # bytes of all outputs together; a binding costs 25 us, as much as copying 1.5 MB

Rooms = dict[str, NDArray[Any]]


class OutputRooms:
    """What a model's file says of its outputs, and the rooms that a batch has for them."""

    def __init__(self, config: ModelConfig, session: ort.InferenceSession) -> None:
        self._batches = config.max_batch_size > 0
        in_file = {node.name: list(node.shape)[self._batches :] for node in session.get_outputs()}
        self._outputs: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            output.name: (BY_CONFIG[output.data_type].dtype, tuple(output.dims))
            for output in config.output
            if output.data_type not in (TYPE_BF16, TYPE_STRING) and list(output.dims) == in_file.get(output.name)
        }

    def of(self, batch: Batch) -> Rooms | None:
        request = batch.requests[0]
        targets = request.asked.output_targets
        if not targets or not request.requested_outputs or len(batch.requests) > 1:
            return None
        rooms: Rooms = {}
        for name in request.requested_outputs:
            room = self._room(name, targets.get(name), batch.size)
            if room is None:
                return None
            rooms[name] = room
        return rooms if sum(room.nbytes for room in rooms.values()) >= ROOM_FROM else None

    def _room(self, name: str, target: OutputTarget | None, rows: int) -> NDArray[Any] | None:
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
        room: NDArray[Any] = np.ndarray(shape, dtype, target.memory.data)
        return room if room.flags.aligned else None


def bind(binding: ort.IOBinding, rooms: Rooms) -> None:
    for name, room in rooms.items():
        binding.bind_output(name, "cpu", 0, room.dtype, room.shape, room.ctypes.data)

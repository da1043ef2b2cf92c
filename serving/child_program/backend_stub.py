"""Runs any backend in the child, for `slipway.isolation: process`, with inputs and outputs in shared memory.

The child needs the server's Python environment, or an environment with the packages of the backend.
"""

import socket
import time
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.base.backend import BlockingInstance, ModelSpec
from serving.backends.channel.messages import (
    CompleteConfig,
    Initialize,
    InitializeBackend,
    RequestMessage,
    ResponseBody,
    TensorRow,
)
from serving.backends.channel.tensors import TYPES, Array, Memory, TensorWriter, deserialize, type_of
from serving.backends.table import backend_class
from serving.child_program.stub import Stub
from serving.core.batch import Batch
from serving.core.datatypes import DATATYPES, Tensor
from serving.core.device_tensor import host_array
from serving.core.devices import Device
from serving.core.errors import ServingError, internal
from serving.core.in_flight import InFlightRequest
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response import InferenceResponse


class SharedBatch(Batch):
    """A batch whose inputs are in one segment. Inputs of one name are adjacent, so gathering them copies nothing."""

    __slots__ = ("_memory", "_rows")

    def __init__(self, requests: list[InFlightRequest], rows: list[Sequence[TensorRow]], memory: Memory) -> None:
        super().__init__(requests, sum(request.batch_size for request in requests))
        self._rows = rows
        self._memory = memory
        self.started_ns = time.monotonic_ns()

    def gather(self) -> dict[str, Array]:
        if len(self.requests) == 1:
            return self.requests[0].inputs
        return {name: self._joined(name) for name in self.requests[0].inputs}

    def _joined(self, name: str) -> Array:
        rows = [row for request_rows in self._rows for row in request_rows if row[0] == name]
        _, kind, first_shape, start, _ = rows[0]
        offset = start
        for _, _, shape, row_offset, length in rows:
            if kind == "BYTES" or row_offset != offset or shape[1:] != first_shape[1:]:
                return np.concatenate([request.inputs[name] for request in self.requests])
            offset += length
        return _view(kind, [sum(row[2][0] for row in rows), *first_shape[1:]], self._memory, start, offset - start)


class BackendStub(Stub):
    """One instance of a backend. `config` in the messages is a serialized ModelConfig in base64."""

    def __init__(self, message: Initialize, link: socket.socket) -> None:
        settings = cast("InitializeBackend", message)
        config = ModelConfig.FromString(b64decode(settings["config"]))
        spec = ModelSpec(
            name=config.name,
            version=settings["version"],
            config=config,
            version_dir=Path(settings["folder"]),
            model_file=Path(settings["model_file"]),
            strict_devices=settings["strict_devices"],
        )
        self._backend = backend_class(config.backend)(spec)
        self._backend.load()
        instance = self._backend.create_instance(Device(*settings["device"]), settings["name"])
        assert isinstance(instance, BlockingInstance)  # a backend with its own child processes is not isolated
        self._instance = instance

    def execute(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        batch = SharedBatch(
            [_request(message, memory) for message in requests], [rows for _, _, rows, _ in requests], memory
        )
        self._instance.execute(batch)
        return [_describe(response, writer) for response in batch.responses]

    @staticmethod
    def complete_config(message: CompleteConfig) -> str:
        """Return the configuration as the backend's `complete_here` completes it."""
        config = ModelConfig.FromString(b64decode(message["config"]))
        backend_class(config.backend).complete_here(config, Path(message["model_file"]))
        return b64encode(config.SerializeToString()).decode()

    def finalize(self) -> None:
        self._instance.close()
        self._backend.unload()


def _view(kind: str, shape: Sequence[int], memory: Memory, offset: int, length: int) -> Array:
    if kind == "BYTES":
        return deserialize(bytes(memory[offset : offset + length]), list(shape))
    array: Array = np.ndarray(shape, TYPES[kind].dtype, memory, offset)
    return array.view(DATATYPES[kind].dtype) if kind == "BF16" else array


def _request(message: RequestMessage, memory: Memory) -> InFlightRequest:
    identifier, batch_size, rows, given = message
    details = given or {}
    flags = details.get("flags", 0)
    asked = InferenceRequest(
        model_name="",
        inputs={name: _view(kind, shape, memory, offset, length) for name, kind, shape, offset, length in rows},
        id=identifier,
        requested_outputs=tuple(details.get("requested", ())),
        parameters=details.get("parameters", {}),
        priority=details.get("priority", 0),
        timeout_us=details.get("timeout", 0),
        sequence=SequencePosition(details.get("sequence", 0), bool(flags & 1), bool(flags & 2)),
    )
    request = InFlightRequest.unanswered(asked)  # the answer goes through `execute`'s result
    request.batch_size = batch_size
    return request


def _describe(response: InferenceResponse | ServingError | None, writer: TensorWriter) -> ResponseBody:
    if response is None:
        response = internal("the backend gave no response")
    if isinstance(response, ServingError):
        return {"error": (response.code.value, response.message)}
    outputs = [_add(writer, name, tensor) for name, tensor in response.outputs.items()]
    return {"outputs": outputs, "parameters": response.parameters} if response.parameters else {"outputs": outputs}


def _add(writer: TensorWriter, name: str, tensor: Tensor) -> TensorRow:
    array = host_array(tensor)
    return writer.add(name, type_of(array).name, array)

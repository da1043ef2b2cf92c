"""Drives a backend without a server: completes the configuration, loads, makes instances, executes batches."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.backends.base.backend import ArrayInstance, Backend, BackendInstance, ModelSpec
from serving.backends.table import backend_class
from serving.configuration.effective_config import auto_complete_config
from serving.core.batch import Batch
from serving.core.devices import CPU, Device
from serving.core.errors import ServingError
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from tests.serving.requests import in_flight


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig())


def spec_of(folder: Path, given: ModelConfig | None = None, version: int = 1) -> ModelSpec:
    """What the server would make of a model's folder: config.pbtxt (or `given`), completed."""
    if given is None:
        written = folder / "config.pbtxt"
        given = config(written.read_text()) if written.exists() else ModelConfig(name=folder.name)
    completed = auto_complete_config(given, folder, version)
    version_dir = folder / str(version)
    return ModelSpec(folder.name, version, completed, version_dir, version_dir / completed.default_model_filename)


@contextlib.contextmanager
def loaded(folder: Path, given: ModelConfig | None = None) -> Iterator[Backend]:
    spec = spec_of(folder, given)
    backend = backend_class(spec.config.backend)(spec)
    backend.load()
    try:
        yield backend
    finally:
        backend.unload()


@contextlib.contextmanager
def instance_of(folder: Path, given: ModelConfig | None = None, device: Device = CPU) -> Iterator[ArrayInstance]:
    with loaded(folder, given) as backend:
        instance = backend.create_instance(device, f"{folder.name}_0_0")
        assert isinstance(instance, ArrayInstance)
        try:
            yield instance
        finally:
            instance.close()


def request(inputs: dict[str, np.ndarray], requested: tuple[str, ...] = (), batched: bool = True) -> InFlightRequest:
    size = len(next(iter(inputs.values()))) if batched else 1
    return in_flight("model", inputs, requested=requested, batch_size=size)


def execute(instance: BackendInstance, *requests: InFlightRequest) -> list[dict[str, Any]]:
    """The outputs of each request; raises where one is answered with an error."""
    batch = Batch(list(requests), sum(each.batch_size for each in requests))
    instance.execute(batch)
    answers = []
    for response in batch.responses:
        if isinstance(response, ServingError):
            raise response
        assert isinstance(response, InferenceResponse)
        answers.append(response.outputs)
    assert batch.input_done_ns <= batch.infer_done_ns
    return answers


def infer(instance: BackendInstance, **inputs: np.ndarray) -> dict[str, Any]:
    return execute(instance, request(inputs))[0]


def random_array(datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values that each datatype holds exactly, two's complement edges among them."""
    from serving.core.datatypes import DATATYPES

    random = np.random.default_rng(3)
    dtype = DATATYPES[datatype].dtype
    if datatype == "BYTES":
        flat = [f"wörd {index}".encode() for index in range(int(np.prod(shape)))]
        array = np.empty(len(flat), np.object_)
        array[:] = flat
        return array.reshape(shape)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return random.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)

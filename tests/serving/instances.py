"""Backend instances driven without a server: make one for a model folder, give it batches."""

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from repository.config import model_config
from serving.backends.base.backend import AsyncInstance, BackendInstance, BlockingInstance, ModelSpec
from serving.backends.table import make_backend
from serving.configuration.effective_config import auto_complete_config
from serving.core.batch import Batch
from serving.core.devices import CPU
from serving.core.errors import ServingError
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from serving.resources.runtime import Runtime
from tests.serving.requests import in_flight
from tests.support.model_factory import python_model, tensors_text
from tests.support.serving_process import PATIENCE_S

LOOP = asyncio.new_event_loop()
"""The loop that a server would have, in a thread of its own: the tests wait for it."""
threading.Thread(target=LOOP.run_forever, name="loop of the tests", daemon=True).start()

Tensors = list[tuple[str, str, list[int]]]
FP32 = [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])]

IDENTITY = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])
                for request in requests
            ]
"""


def written_model(
    repository: Path,
    source: str,
    inputs: Tensors = FP32[0],
    outputs: Tensors = FP32[1],
    max_batch_size: int = 8,
    extra: str = "",
    name: str = "model",
) -> Path:
    """The folder of a Python model with that source and configuration."""
    head = f'name: "{name}" backend: "python" max_batch_size: {max_batch_size} '
    text = head + tensors_text("input", inputs) + tensors_text("output", outputs) + extra
    return python_model(repository, name, source, text)


def spec_of(folder: Path, version: int = 1, runtime: Runtime | None = None) -> ModelSpec:
    """What the server would load, completed. It has a runtime whose loop is LOOP."""
    runtime = runtime or Runtime(LOOP, Mock(), Mock(), Mock())
    runtime = dataclasses.replace(runtime, loop=LOOP, executor=None)
    config = auto_complete_config(model_config.read(folder), folder, version)
    version_dir = folder / str(version)
    file = version_dir / config.default_model_filename
    return ModelSpec(folder.name, version, config, version_dir, file, runtime=runtime)


@contextlib.contextmanager
def instance_of(folder: Path, name: str = "", runtime: Runtime | None = None) -> Iterator[BackendInstance]:
    spec = spec_of(folder, runtime=runtime)
    backend = make_backend(spec)
    backend.load()
    instance = backend.create_instance(CPU, name or f"{spec.name}_0_0")
    try:
        yield instance
    finally:
        instance.close()
        backend.unload()


@contextlib.contextmanager
def python_instance(
    repository: Path, source: str, runtime: Runtime | None = None, **options: Any
) -> Iterator[BackendInstance]:
    with instance_of(written_model(repository, source, **options), runtime=runtime) as instance:
        yield instance


def request(inputs: Any, **fields: Any) -> InFlightRequest:
    """A request; one array alone is INPUT0. The batch size is the first dimension of the first input."""
    named = inputs if isinstance(inputs, dict) else {"INPUT0": inputs}
    shape = next(iter(named.values())).shape
    fields.setdefault("batch_size", shape[0] if shape else 1)
    return in_flight("model", named, **fields)


def execute(instance: BackendInstance, *requests: InFlightRequest) -> list[Any]:
    """The answers of one batch; an exception that fails the whole batch is the answer of each."""
    batch = Batch(list(requests), sum(one.batch_size for one in requests))
    try:
        run(instance, batch)
    except ServingError as error:
        return [error if answer is None else answer for answer in batch.responses]
    return batch.responses


def run(instance: BackendInstance, batch: Batch) -> None:
    """Have a batch executed as a model instance would, and wait for its end."""
    if isinstance(instance, BlockingInstance):
        instance.execute(batch)
        return
    assert isinstance(instance, AsyncInstance)
    done: Future[Batch] = Future()

    def begin() -> None:
        try:
            instance.begin(batch, done.set_result)
        except Exception as error:
            done.set_exception(error)

    batch.started_ns = time.monotonic_ns()
    LOOP.call_soon_threadsafe(begin)
    done.result(PATIENCE_S)


def infer(instance: BackendInstance, inputs: Any, **fields: Any) -> dict[str, Any]:
    """The outputs of one request alone; raises its error."""
    [answer] = execute(instance, request(inputs, **fields))
    if isinstance(answer, ServingError):
        raise answer
    assert isinstance(answer, InferenceResponse)
    return answer.outputs

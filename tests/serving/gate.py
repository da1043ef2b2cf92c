"""A backend whose executions wait at a gate, so that a test decides what is queued when a batch is formed.

It adds 1 to "IN" (FP32 [1]) and gives "OUT". `GateBackend.log` holds the values of each executed batch.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.backends import KINDS, BackendKind, ModelFormat
from serving.backends.base.backend import ArrayInstance, Backend, BackendInstance, ModelSpec
from serving.core.devices import Device
from serving.core.errors import ServingError
from serving.core.response import InferenceResponse
from serving.models.model import Model
from serving.resources.runtime import Runtime
from serving.telemetry.statistics import ModelStatistics
from tests.serving.requests import in_flight
from tests.support.serving_process import PATIENCE_S


def ignore(*_: object) -> None:
    """Models of these tests call no others."""


KINDS["gate"] = BackendKind("gate", "tests.serving.gate:GateBackend", (ModelFormat("gate", "gate"),))


class GateBackend(Backend):
    loads = 0

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.gate = threading.Event()
        self.log: list[list[float]] = []
        self.closed: list[str] = []
        GateBackend.loads += 1
        GateBackend.latest = self

    latest: "GateBackend"

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        return

    def create_instance(self, device: Device, name: str) -> BackendInstance:
        return _GateInstance(self, device, name)


class _GateInstance(ArrayInstance):
    def __init__(self, backend: GateBackend, device: Device, name: str) -> None:
        super().__init__(backend.spec, device)
        self.backend = backend
        self.name = name

    def run(self, inputs: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
        values = inputs["IN"].ravel().tolist()
        self.backend.log.append(values)
        assert self.backend.gate.wait(PATIENCE_S), "the test never opened the gate"
        if -1.0 in values:
            raise ValueError("the model does not like -1")
        return {"OUT": inputs["IN"] + 1}

    def close(self) -> None:
        self.backend.closed.append(self.name)


def write_gated(repository: Path, name: str = "gated", extra: str = "", size: int = 0) -> None:
    """Write a model whose file has so many bytes."""
    folder = repository / name / "1"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gate").write_bytes(bytes(size))
    (repository / name / "config.pbtxt").write_text(
        f"""name: "{name}" backend: "gate" max_batch_size: 4
        input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
        {extra}"""
    )


@contextlib.asynccontextmanager
async def gated_model(
    settings: str = "", max_batch_size: int = 8, runtime: Runtime | None = None
) -> AsyncIterator[tuple[Model, GateBackend]]:
    """A loaded model with one instance that waits at the gate; `settings` is added to its config.pbtxt."""
    config = text_format.Parse(
        f"""name: "gated" backend: "gate" max_batch_size: {max_batch_size}
        input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
        {settings}""",
        ModelConfig(),
    )
    spec = ModelSpec("gated", 1, config, Path("/nowhere"), Path("/nowhere/gate"))
    with ThreadPoolExecutor(1) as executor:
        loop = asyncio.get_running_loop()
        model = Model(spec, ModelStatistics("gated", 1), runtime or Runtime(loop, executor, ignore, ignore))
        await model.load()
        await model.warm_up()
        backend = GateBackend.latest
        try:
            yield model, backend
        finally:
            backend.gate.set()
            await model.drain()


class Call:
    """One request under way; await `answer()` for its response or error."""

    def __init__(self, model: Model, values: list[float], **fields: Any) -> None:
        self.answers: list[Any] = []
        self._future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        array = np.array(values, np.float32).reshape(-1, 1)
        self.request = in_flight("gated", {"IN": array}, self._on_response, **fields)
        model.submit(self.request)

    def _on_response(self, response: Any, final: bool) -> None:
        self.answers.append(response)
        if not self._future.done():
            self._future.set_result(response)

    async def answer(self) -> list[float]:
        """The values of OUT; raises what the request was answered with."""
        response = await asyncio.wait_for(self._future, PATIENCE_S)
        if isinstance(response, ServingError):
            raise response
        assert isinstance(response, InferenceResponse)
        values: list[float] = response.outputs["OUT"].ravel().tolist()
        return values


async def until(condition: Any, what: str = "the condition") -> None:
    """Let the loop run until `condition()` holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)

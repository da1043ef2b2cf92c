"""A double of what executes elsewhere (an AsyncInstance, as a process of its own is): batches end when the test says so.

It adds 1 to "IN" (FP32 [1]) and gives "OUT". `DoubleBackend.latest.instances` are the instances that were made last.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.backends import KINDS, BackendKind, ModelFormat
from serving.backends.base.backend import AsyncInstance, Backend, ModelSpec
from serving.core.batch import Batch
from serving.core.devices import Device

KINDS["double"] = BackendKind("double", "tests.serving.elsewhere:DoubleBackend", (ModelFormat("double", "double"),))


class DoubleBackend(Backend):
    latest: "DoubleBackend"

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.instances: list[DoubleInstance] = []
        DoubleBackend.latest = self

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        return

    def create_instance(self, device: Device, name: str) -> "DoubleInstance":
        self.instances.append(DoubleInstance(self.spec, device))
        return self.instances[-1]


class DoubleInstance(AsyncInstance):
    """begun: the values of each batch so far. open: batches that have not ended, with what they call when they do."""

    def __init__(self, spec: ModelSpec, device: Device) -> None:
        super().__init__(device)
        self._spec = spec
        self.begun: list[list[float]] = []
        self.open: deque[tuple[Batch, Callable[[Batch], None]]] = deque()
        self.closed_on: threading.Thread | None = None
        self.made_on = threading.current_thread()

    def begin(self, batch: Batch, done: Callable[[Batch], None]) -> None:
        asyncio.get_running_loop()  # raises on another thread than the loop's
        inputs = batch.gather()
        values = inputs["IN"].ravel().tolist()
        if -1.0 in values:
            raise ValueError("nobody takes -1")
        batch.scatter({"OUT": inputs["IN"] + 1}, self._spec.name, self._spec.version)
        self.begun.append(values)
        self.open.append((batch, done))

    def end_one(self) -> None:
        """End the batch that has been open for the longest time."""
        batch, done = self.open.popleft()
        done(batch)

    def close(self) -> None:
        self.closed_on = threading.current_thread()


def double_spec(settings: str = "", max_batch_size: int = 8) -> ModelSpec:
    config = text_format.Parse(
        f"""name: "double" backend: "double" max_batch_size: {max_batch_size}
        input {{ name: "IN" data_type: TYPE_FP32 dims: 1 }} output {{ name: "OUT" data_type: TYPE_FP32 dims: 1 }}
        {settings}""",
        ModelConfig(),
    )
    return ModelSpec("double", 1, config, Path("/nowhere"), Path("/nowhere/double"))

"""The interface of a backend, which reads one model version's weights once and makes the instances that execute batches.

    backend = backend_class("onnxruntime")(spec)      loop-independent; no heavy work
    backend.complete_config(config, version_dir)      classmethod: complete it from the file, refuse contradictions
    backend.load()                                    worker thread: read weights that instances share
    instance = backend.create_instance(device, name)  on the instance's own thread
    instance.execute(batch)                           on that thread, or the loop's, one at a time (BlockingInstance)
    instance.begin(batch, done)                       on the loop's thread, up to `slots` at a time (AsyncInstance)
    instance.close(); backend.unload()                after the last request; must free all memory

Only `execute` and `begin` are on the hot path. Everything raises ServingError with one sentence; any other exception is
reported as INTERNAL with its text.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias, cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.signature import Signature
from repository.core.json_types import Json
from serving.core.batch import Batch
from serving.core.datatypes import Tensor
from serving.core.device_tensor import DeviceTensor, host_array
from serving.core.devices import Device, gpu_count
from serving.core.errors import unavailable
from serving.extensions.ragged import RaggedLayout
from serving.resources.runtime import Runtime

Outputs: TypeAlias = Mapping[str, "Tensor | DeviceTensor"]
"""Outputs by name, on the host or on a GPU."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The model version that a backend is made for. `config` is complete and validated; `version_dir` holds the model file."""

    name: str
    version: int
    config: ModelConfig
    version_dir: Path
    model_file: Path  # version_dir / default_model_filename (or the backend's default)
    strict_devices: bool = False
    runtime: Runtime | None = None  # the server's, for models that call it; None outside one

    def require_runtime(self) -> Runtime:
        """Return the server's runtime; UNAVAILABLE outside a server."""
        if self.runtime is None:
            raise unavailable("there is no server to ask")
        return self.runtime


@dataclass(frozen=True, slots=True)
class Review:
    """Remarks for a person about a model file, beyond its tensors; a file with `errors` is not served. archive: the file's own
    description."""

    archive: Mapping[str, Json]
    errors: Sequence[str]
    warnings: Sequence[str]
    notes: Sequence[str]


class BackendInstance(ABC):  # noqa: B024
    """One execution context on one device: a BlockingInstance or an AsyncInstance."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def processes(self) -> list[int]:
        """Return the ids of the processes that hold the model, where the server's own does not. Any thread."""
        return []

    def available(self) -> bool:
        """Return whether it would answer now: a scheduler prefers other instances to one that would not. Any thread."""
        return True

    def unready_reason(self) -> str:
        """Return why it would not answer at once, in words that follow its name; "" if it would. Any thread."""
        return ""

    def down_s(self) -> float:
        """Return for how many seconds its process has been gone; 0 while it runs. Any thread."""
        return 0.0

    def readiness(self) -> "Future[bool] | None":
        """Ask the model itself whether it is ready; None for a model without such a method. Any thread."""
        return None

    def close(self) -> None:  # noqa: B027
        """Free the instance's resources. Called once, on the thread that made it, when no batch is under way."""


class BlockingInstance(BackendInstance):
    """Executes batches one at a time, on the caller's thread: the instance's own, unless `any_thread`.

    any_thread: it may execute on any thread of the server, one batch at a time: it never waits for a device or a process, and
    runs no code of users. While its executions are short they run on the event loop's own thread.
    """

    any_thread = False

    def enter_loop(self) -> None:
        """Prepare the loop's thread, on which it is called, for short executions of an instance with `any_thread`."""

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Answer the batch (see Batch). `batch.requests` is never empty.

        Inputs may be DeviceTensors. Outputs are host arrays, unless every request of the batch has `device_outputs` and
        the backend finds it cheaper to leave them on the device.
        """


class AsyncInstance(BackendInstance):
    """Executes elsewhere, such as in a process of its own, while the event loop goes on: no thread waits for it.

    slots: the number of batches that it may have at once, so that the next one is there when one ends.
    """

    slots = 2

    @abstractmethod
    def begin(self, batch: Batch, done: Callable[[Batch], None]) -> None:
        """Begin to execute a batch; called on the event loop's thread, at most `slots` times ahead of `done`.

        It must not block. Later, never before it has returned, it calls `done(batch)` once, on the loop's thread, with
        `batch.responses` filled (see Batch) or `batch.fail` called. If `begin` raises, the batch fails and `done` must not be
        called. `batch.started_ns` is set; an instance whose batch waits for the one before it corrects that time.
        """


class ArrayInstance(BlockingInstance):
    """For backends that map arrays to arrays: a subclass implements `run`; this class gathers, splits and takes the times."""

    def __init__(self, spec: ModelSpec, device: Device) -> None:
        super().__init__(device)
        self.spec = spec
        # The inputs of an ensemble's step on the CPU may come from a step on a GPU.
        self._on_host_beside_gpus = device.kind == "cpu" and gpu_count() > 0
        states = [state.output_name for state in spec.config.sequence_batching.state]
        self._ragged = RaggedLayout(spec.config) if RaggedLayout.needed(spec.config) else None
        self.output_names = list(dict.fromkeys([*(output.name for output in spec.config.output), *states]))

    @abstractmethod
    def run(self, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        """Return the outputs of these names, of shape [batch, ...], for inputs of shape [batch, ...].

        There is no batch dimension where max_batch_size is 0.
        """

    def execute(self, batch: Batch) -> None:
        ragged = self._ragged
        inputs = batch.gather() if ragged is None else ragged.gather(batch)
        if self._on_host_beside_gpus:
            inputs = {name: host_array(tensor) for name, tensor in inputs.items()}
        batch.input_done()
        outputs = cast("dict[str, Tensor]", self.run(inputs, batch.union_of_requested(self.output_names)))
        batch.infer_done()
        if ragged is None:
            batch.scatter(outputs, self.spec.name, self.spec.version)
        else:
            ragged.scatter(batch, outputs, self.spec.name, self.spec.version)


class Backend(ABC):
    """One loaded model version."""

    # Whether its instances are processes that run the code of a model's author.
    runs_user_code: ClassVar[bool] = False

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @classmethod
    @abstractmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Fill the missing fields of `config` (inputs, outputs, and max_batch_size if inputs are missing too) from the model
        file, which `default_model_filename` names, in place; INVALID_ARG if a given field contradicts the file. Used by the
        server and by serving.inspect.
        """

    @classmethod
    def file_signature(cls, model_file: Path) -> Signature | None:
        """Return the inputs and outputs that a model file describes, whatever a configuration says; None if it describes none.
        Used by serving.inspect."""
        return None

    @classmethod
    def review(cls, model_file: Path) -> Review | None:
        """Return the review of a file that describes its whole configuration; None for a file that describes its tensors alone.
        Used by serving.inspect."""
        return None

    @classmethod
    def complete_here(cls, config: ModelConfig, model_file: Path) -> None:
        """Complete a configuration in a child process: the part of `complete_config` for kinds with `own_process`."""
        cls.complete_config(config, model_file.parent)

    def load(self) -> None:  # noqa: B027
        """Read the weights that instances share; a backend whose instances load their own leaves this empty."""

    @abstractmethod
    def create_instance(self, device: Device, name: str) -> BackendInstance:
        """Make one instance; `name` is "<model>_<group>_<index>", Triton's instance name."""

    def unload(self) -> None:  # noqa: B027
        """Free the weights that `load` read."""

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        """Return whether this backend can use a GPU here, and if not, a clause that says why."""
        return False, "this backend runs on the CPU"

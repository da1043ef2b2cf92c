"""The interface of a backend, which reads one model version's weights once and makes the instances that execute batches.

    backend = backend_class("onnxruntime")(spec)      needs no event loop; does no heavy work
    backend.complete_config(config, version_dir)      a classmethod: completes it from the file, refuses contradictions
    backend.load()                                    on a worker thread: reads the weights that instances share
    instance = backend.create_instance(device, name)  on the instance's own thread
    instance.execute(batch)                           on that thread, or the loop's, one at a time (BlockingInstance)
    instance.begin(batch, done)                       on the loop's thread, up to `slots` at a time (AsyncInstance)
    instance.close(); backend.unload()                after the last request; must free all memory

Only `execute` and `begin` are on the hot path. Every method raises ServingError with one sentence. Any other exception is
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
    """The model version that a backend loads. `config` is complete and validated. `version_dir` contains the model file."""

    name: str
    version: int
    config: ModelConfig
    version_dir: Path
    model_file: Path  # version_dir / default_model_filename (or the backend's default)
    strict_devices: bool = False
    runtime: Runtime | None = None  # the server's runtime, for models that call the server; None outside a server

    def require_runtime(self) -> Runtime:
        """Return the server's runtime. Raises UNAVAILABLE if there is no server."""
        if self.runtime is None:
            raise unavailable("there is no server to ask")
        return self.runtime


@dataclass(frozen=True, slots=True)
class Review:
    """Remarks about a model file for the person who uploads it, except on its tensors. A file with `errors` is not served.
    archive: the file's own metadata."""

    archive: Mapping[str, Json]
    errors: Sequence[str]
    warnings: Sequence[str]
    notes: Sequence[str]


class BackendInstance(ABC):  # noqa: B024
    """One execution context on one device: a BlockingInstance or an AsyncInstance."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def processes(self) -> list[int]:
        """Return the ids of the processes that hold the model; [] if the server's process holds it. Callable on any thread."""
        return []

    def available(self) -> bool:
        """Return whether the instance would answer now: a scheduler prefers such instances. Callable on any thread."""
        return True

    def unready_reason(self) -> str:
        """Return why the instance cannot answer now, as a clause after its name; "" if it can. Callable on any thread."""
        return ""

    def down_s(self) -> float:
        """Return the seconds since the instance's process ended; 0 while the process runs. Callable on any thread."""
        return 0.0

    def readiness(self) -> "Future[bool] | None":
        """Ask the model itself whether it is ready. Return None if the model has no method for that. Callable on any thread."""
        return None

    def close(self) -> None:  # noqa: B027
        """Free the instance's resources. Called once, on the thread that made it, when no batch is running."""


class BlockingInstance(BackendInstance):
    """Executes batches one at a time on the caller's thread, which is the instance's own thread unless `any_thread` is true.

    any_thread: the instance may execute on any thread of the server, one batch at a time. Such an instance never waits for a
    device or a process, and runs no user code. While its executions are short, they run on the event loop's own thread.
    """

    any_thread = False

    def enter_loop(self) -> None:
        """Prepare the loop's thread, on which this is called, for short executions of an instance with `any_thread`."""

    @abstractmethod
    def execute(self, batch: Batch) -> None:
        """Fill the responses of the batch (see Batch). `batch.requests` is never empty.

        Inputs may be DeviceTensors. Outputs are host arrays, or stay on the device if every request of the batch has
        `device_outputs` and this is cheaper for the backend.
        """


class AsyncInstance(BackendInstance):
    """Executes outside of the server's threads, for example in a child process.

    slots: the number of batches that the instance may have, so that the next batch is ready when one ends.
    """

    slots = 2

    @abstractmethod
    def begin(self, batch: Batch, done: Callable[[Batch], None]) -> None:
        """Begin to execute a batch. Called on the event loop's thread, while the instance has fewer than `slots` unfinished
        batches.

        `begin` must not block. The instance must call `done(batch)` once, on the loop's thread and after `begin` has returned,
        with `batch.responses` filled (see Batch) or after `batch.fail`. If `begin` raises, the batch fails, and `done` must not
        be called. `batch.started_ns` is set. If the batch waits for the previous batch, the instance sets `started_ns` again
        when the batch starts.
        """


class ArrayInstance(BlockingInstance):
    """Maps input arrays to output arrays. Subclasses implement `run`. This class gathers inputs, splits outputs and measures
    times."""

    def __init__(self, spec: ModelSpec, device: Device) -> None:
        super().__init__(device)
        self.spec = spec
        # An ensemble's step on the CPU may get inputs from a step on a GPU.
        self._on_host_beside_gpus = device.kind == "cpu" and gpu_count() > 0
        states = [state.output_name for state in spec.config.sequence_batching.state]
        self._ragged = RaggedLayout(spec.config) if RaggedLayout.needed(spec.config) else None
        self.output_names = list(dict.fromkeys([*(output.name for output in spec.config.output), *states]))

    @abstractmethod
    def run(self, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        """Return the outputs with these names, of shape [batch, ...], for inputs of shape [batch, ...].

        The shapes have no batch dimension if max_batch_size is 0.
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

    # True if the instances are processes that run the code of a model's author.
    runs_user_code: ClassVar[bool] = False

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @classmethod
    @abstractmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Fill the missing fields of `config` from the model file, which `default_model_filename` names: inputs, outputs, and
        max_batch_size if inputs are missing too. Raises INVALID_ARG if a given field contradicts the file. Called by the server
        and by serving.inspect."""

    @classmethod
    def file_signature(cls, model_file: Path) -> Signature | None:
        """Return the inputs and outputs that a model file declares, without a configuration, or None if it declares none.
        Called by serving.inspect."""
        return None

    @classmethod
    def review(cls, model_file: Path) -> Review | None:
        """Return the review of a file that describes its whole configuration, or None if the file only describes its tensors.
        Called by serving.inspect."""
        return None

    @classmethod
    def complete_here(cls, config: ModelConfig, model_file: Path) -> None:
        """Complete a configuration inside a child process. Called for backends with `own_process`, whose `complete_config`
        starts the child process."""
        cls.complete_config(config, model_file.parent)

    def load(self) -> None:  # noqa: B027
        """Read the weights that instances share. Backends whose instances load their own weights do nothing here."""

    @abstractmethod
    def create_instance(self, device: Device, name: str) -> BackendInstance:
        """Make one instance. name: "<model>_<group>_<index>", Triton's name for the instance."""

    def unload(self) -> None:  # noqa: B027
        """Free the weights that `load` read."""

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        """Return whether this backend can use a GPU on this machine and, if not, a clause with the reason."""
        return False, "this backend runs on the CPU"

"""What a backend is: it reads one model version's weights once and makes the instances that execute batches.

    backend = backend_class("onnxruntime")(spec)      loop-independent; no heavy work
    backend.complete_config(config, version_dir)      classmethod: fill in what the file knows, refuse contradictions
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
    """What a backend is made from. `config` is complete and validated; `version_dir` holds the model file."""

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
    """What a person should know of a model file beyond its tensors: `errors` keep it from being served. archive: what the file
    says of itself."""

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
        """Whether it would answer now: a scheduler prefers other instances to one that would not. Any thread."""
        return True

    def unready_reason(self) -> str:
        """Return why it would not answer at once, in words that follow its name; "" where it would. Any thread."""
        return ""

    def down_s(self) -> float:
        """Return for how long its process has been gone, in seconds; 0 where it runs. Any thread."""
        return 0.0

    def readiness(self) -> "Future[bool] | None":
        """Ask the model itself whether it is ready; None where it has no say. Any thread."""
        return None

    def close(self) -> None:  # noqa: B027
        """Free what this instance holds. Called once, on the thread that made it, when no batch is under way."""


class BlockingInstance(BackendInstance):
    """Executes batches one at a time, on the thread that asks: the instance's own, unless `any_thread`.

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
    """Executes elsewhere, in a process of its own say, while the event loop goes on: no thread waits for it.

    slots: how many batches it takes before it has answered the first, so that the next is there when one ends.
    """

    slots = 2

    @abstractmethod
    def begin(self, batch: Batch, done: Callable[[Batch], None]) -> None:
        """Begin to execute a batch; called on the event loop's thread, at most `slots` times ahead of `done`.

        It must not block. Later, never before it has returned, it calls `done(batch)` once, on the loop's thread, with
        `batch.responses` filled (see Batch) or `batch.fail` called. What it raises itself fails the batch instead, and `done`
        is not called then. `batch.started_ns` is set; where the batch first waits for the one before it, say when it began.
        """


class ArrayInstance(BlockingInstance):
    """For backends that map arrays to arrays: implement `run`; this class gathers, splits and takes the times."""

    def __init__(self, spec: ModelSpec, device: Device) -> None:
        super().__init__(device)
        self.spec = spec
        # A step of an ensemble on the CPU after one on a GPU.
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

    # Whether its instances are processes that run the code of a model's author, whatever that reads.
    runs_user_code: ClassVar[bool] = False
    # Whether instances may share `load()`ed weights, so that a changed instance count needs no reload. A backend whose
    # instances each load their own may leave `load` empty.

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @classmethod
    @abstractmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Fill what is missing in `config` (max_batch_size where inputs are also missing, inputs, outputs) from the model
        file, which `default_model_filename` names, in place; INVALID_ARG where what is given contradicts the file. Used by
        the server and by serving.inspect.
        """

    @classmethod
    def file_signature(cls, model_file: Path) -> Signature | None:
        """Return the inputs and outputs that a model file says it has, whatever a configuration says; None where it says
        none. Used by serving.inspect."""
        return None

    @classmethod
    def review(cls, model_file: Path) -> Review | None:
        """Return what a file says of itself, which then is all of its configuration; None where it says its tensors alone.
        Used by serving.inspect."""
        return None

    @classmethod
    def complete_here(cls, config: ModelConfig, model_file: Path) -> None:
        """Do the part of `complete_config` that a backend whose kind has `own_process` does in a child process."""
        cls.complete_config(config, model_file.parent)

    def load(self) -> None:  # noqa: B027
        """Read what the instances share."""

    @abstractmethod
    def create_instance(self, device: Device, name: str) -> BackendInstance:
        """Make one instance; `name` is "<model>_<group>_<index>", Triton's instance name."""

    def unload(self) -> None:  # noqa: B027
        """Free what `load` read."""

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        """Return whether this backend can use a GPU here, and if not in one sentence why (what is missing)."""
        return False, "this backend runs on the CPU"

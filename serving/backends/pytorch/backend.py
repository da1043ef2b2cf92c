"""The PyTorch backend: TorchScript files (.pt), and torch.export and AOTInductor archives (.pt2), recognised by content.

As in Triton, each instance loads its own weights, unless ENABLE_WEIGHT_SHARING lets the instances of one device share them. On
a GPU, each instance has its own CUDA stream. The parameters are the ones of Triton's pytorch_backend (README, "Parameters").
"""

import copy
import logging
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.signature import Signature, fed_by_scheduler, indexed, positions
from serving.backends.base.backend import ArrayInstance, Backend, ModelSpec, Outputs
from serving.backends.base.parameters import Parameters, default_threads
from serving.backends.base.signature import complete_config
from serving.backends.pytorch.archive import Archive, Kind, export_signature, read_archive
from serving.backends.pytorch.tensors import from_strings, to_device_tensor, to_numpy, to_strings, to_torch
from serving.backends.pytorch.torch_model import (
    Call,
    TorchModel,
    forget_exported_programs,
    load_model,
    run_error,
    torch_device,
)
from serving.backends.pytorch.torch_signature import certain_part, torchscript_signature
from serving.core.batch import Batch
from serving.core.datatypes import BY_CONFIG, Tensor
from serving.core.device_tensor import DeviceTensor
from serving.core.devices import Device, gpu_count
from serving.core.errors import internal, invalid, not_found

log = logging.getLogger(__name__)

_KNOWN = {
    "INFERENCE_MODE",
    "DISABLE_OPTIMIZED_EXECUTION",
    "DISABLE_CUDNN",
    "ENABLE_CACHE_CLEANING",
    "ENABLE_JIT_EXECUTOR",
    "ENABLE_JIT_PROFILING",
    "ENABLE_TENSOR_FUSER",
    "ENABLE_WEIGHT_SHARING",
    "INTRA_OP_THREAD_COUNT",
    "INTER_OP_THREAD_COUNT",
    "NUM_THREADS",
    "NUM_INTEROP_THREADS",
}

_NOT_OF_TORCHSCRIPT = frozenset((mc.TYPE_UINT16, mc.TYPE_UINT32, mc.TYPE_UINT64))


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of one model. threads: the number for each instance on the CPU. interop_threads: 0 for torch's default."""

    inference_mode: bool
    optimized_execution: bool
    cache_cleaning: bool
    weight_sharing: bool
    threads: int
    interop_threads: int

    @classmethod
    def of(cls, config: ModelConfig) -> "Settings":
        parameters = Parameters.of(config)
        parameters.warn_of_unknown(_KNOWN)
        threads = parameters.integer("INTRA_OP_THREAD_COUNT", 0, maximum=1024)
        interop_threads = parameters.integer("INTER_OP_THREAD_COUNT", 0, maximum=1024)
        return cls(
            inference_mode=parameters.boolean("INFERENCE_MODE", True),
            optimized_execution=not parameters.boolean("DISABLE_OPTIMIZED_EXECUTION", False),
            cache_cleaning=parameters.boolean("ENABLE_CACHE_CLEANING", False),
            weight_sharing=parameters.boolean("ENABLE_WEIGHT_SHARING", False),
            threads=parameters.integer("NUM_THREADS", threads, maximum=1024) or default_threads(config),
            interop_threads=parameters.integer("NUM_INTEROP_THREADS", interop_threads, maximum=1024),
        )


class PytorchBackend(Backend):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._shared: dict[Device, TorchModel] = {}
        self._lock = threading.Lock()  # each instance is made on its own thread

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        path = _model_file(version_dir, config.default_model_filename)
        archive = read_archive(path)
        if archive.kind is Kind.AOTINDUCTOR and not config.platform:
            config.platform = "torch_aoti"
        signature = _signature(path, archive, config)
        if signature is not None:
            complete_config(config, signature)
        _check_datatypes(config, archive.kind)

    @classmethod
    def file_signature(cls, model_file: Path) -> Signature | None:
        archive = read_archive(model_file)
        if archive.kind is Kind.TORCHSCRIPT:
            return certain_part(torchscript_signature(model_file, archive))
        return export_signature(model_file) if archive.kind is Kind.TORCH_EXPORT else None

    def load(self) -> None:
        """Check the file and every setting. The instances read the weights."""
        self._settings = Settings.of(self.spec.config)
        self.complete_config(copy.deepcopy(self.spec.config), self.spec.version_dir)
        _set_process_wide(self.spec, self._settings)

    def create_instance(self, device: Device, name: str) -> "PytorchInstance":
        if not self._settings.weight_sharing:
            model = load_model(self.spec.model_file, device)
        else:
            with self._lock:
                if device not in self._shared:
                    self._shared[device] = load_model(self.spec.model_file, device)
                model = self._shared[device]
        return PytorchInstance(self.spec, device, model, self._settings)

    def unload(self) -> None:
        self._shared.clear()
        forget_exported_programs()

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        if not gpu_count():
            return False, "this machine has no CUDA device"
        if torch.version.cuda is None:
            return False, "this torch package was built without CUDA"
        if not torch.cuda.is_available():
            return False, f"torch {torch.__version__} cannot start CUDA on this machine's driver"
        return True, ""


def _model_file(version_dir: Path, filename: str) -> Path:
    names = [filename] if filename else ["model.pt", "model.pt2"]
    for name in names:
        if (version_dir / name).is_file():
            return version_dir / name
    raise not_found(f"the version folder has no '{names[0]}'")


def _signature(path: Path, archive: Archive, config: ModelConfig) -> Signature | None:
    """Return the file's signature, or None if the configuration already has it (TorchScript, AOTInductor)."""
    if archive.kind is Kind.TORCH_EXPORT:
        return export_signature(path)
    if _is_complete(config):
        return None
    if archive.kind is Kind.AOTINDUCTOR:
        raise invalid(
            "an AOTInductor package does not say its inputs and outputs: the configuration must give all of them"
        )
    return torchscript_signature(path, archive)


def _check_datatypes(config: ModelConfig, kind: Kind) -> None:
    """Raise INVALID_ARG for datatypes that torch or Triton's TorchScript backend does not have.

    A TorchScript file does not name its datatypes, so without this check a wrong datatype would fail with the first request.
    """
    refused = _NOT_OF_TORCHSCRIPT if kind is Kind.TORCHSCRIPT else frozenset()
    for role, tensors in (("input", config.input), ("output", config.output)):
        for tensor in tensors:
            if tensor.data_type in refused:
                raise _unsupported(tensor.data_type, f"{role} '{tensor.name}'", config)
    batching = config.sequence_batching
    for tensor in batching.control_input:
        for control in tensor.control:
            if control.data_type in refused | {mc.TYPE_STRING}:
                raise _unsupported(control.data_type, f"input '{tensor.name}'", config)
    for state in batching.state:
        if state.data_type in refused | {mc.TYPE_STRING}:
            raise _unsupported(state.data_type, f"state '{state.input_name}'", config)


def _unsupported(data_type: int, tensor: str, config: ModelConfig) -> Exception:
    return invalid(f"unsupported datatype {mc.DataType.Name(data_type)} for {tensor} for model '{config.name}'")


def _is_complete(config: ModelConfig) -> bool:
    tensors = [*config.input, *config.output]
    return bool(config.input and config.output) and all(t.data_type != mc.TYPE_INVALID and t.dims for t in tensors)


def _set_process_wide(spec: ModelSpec, settings: Settings) -> None:
    """Apply the settings that torch has once for the whole process. The last model that sets one of them decides."""
    parameters = Parameters.of(spec.config)
    switches = {
        "ENABLE_JIT_EXECUTOR": torch._C._jit_set_profiling_executor,
        "ENABLE_JIT_PROFILING": torch._C._jit_set_profiling_mode,
        "ENABLE_TENSOR_FUSER": torch._C._jit_set_texpr_fuser_enabled,
    }
    for key, switch in switches.items():
        if key in parameters.values:
            switch(parameters.boolean(key, True))
    if "DISABLE_CUDNN" in parameters.values:
        torch.backends.cudnn.enabled = not parameters.boolean("DISABLE_CUDNN", False)
    if settings.interop_threads:
        try:
            torch.set_num_interop_threads(settings.interop_threads)
        except RuntimeError:  # torch allows this only once, before the first parallel work
            log.warning("model '%s': torch's inter-op threads are set already and stay as they are", spec.name)


class PytorchInstance(ArrayInstance):
    """A module on one device. Inputs are passed by position. Outputs are found by name or position."""

    def __init__(self, spec: ModelSpec, device: Device, model: TorchModel, settings: Settings) -> None:
        super().__init__(spec, device)
        config = spec.config
        self._model: TorchModel | None = model
        self._settings = settings
        self._device = torch_device(device)
        self._stream = torch.cuda.Stream(self._device) if device.kind == "gpu" else None
        self._names = _placed_inputs(config, model)
        self._inputs = list(enumerate(self._names))
        self._call = model.call if settings.optimized_execution else _unoptimized(model.call)
        self._strings = {entry.name for entry in config.input if entry.data_type == mc.TYPE_STRING}
        output_indexes = indexed(self.output_names)
        self._output_index = dict(zip(self.output_names, output_indexes or range(len(self.output_names)), strict=True))
        states = {state.output_name: state.data_type for state in config.sequence_batching.state}
        types = {**states, **{entry.name: entry.data_type for entry in config.output}}
        self._dtypes = {name: BY_CONFIG[data_type].dtype for name, data_type in types.items()}
        # A List[str] has one dimension: the batch, or else the first dimension in dims.
        inner = 0 if config.max_batch_size else 1
        self._string_dims = {entry.name: [1] * (len(entry.dims) - inner) for entry in config.output}
        self._shapes_vary = any(-1 in entry.dims for entry in config.input)
        self._stay_on_device = False
        self.any_thread = device.kind == "cpu"
        if device.kind == "cpu":
            # OpenMP keeps a number of threads for each calling thread, so this call applies to this thread only.
            torch.set_num_threads(settings.threads)

    def enter_loop(self) -> None:
        torch.set_num_threads(1)  # executions that need more threads do not run on the loop's thread

    def execute(self, batch: Batch) -> None:
        self._stay_on_device = self._stream is not None and all(
            request.asked.device_outputs for request in batch.requests
        )
        super().execute(batch)

    def run(self, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        assert self._model is not None
        with self._mode():
            if self._stream is None:
                return self._forward(self._model, inputs, outputs)
            with torch.cuda.stream(self._stream):
                found = self._forward(self._model, inputs, outputs)
                self._stream.synchronize()
        if self._settings.cache_cleaning:
            torch.cuda.empty_cache()
        return found

    def _forward(self, model: TorchModel, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        arguments = [self._argument(inputs.get(name), name, index in model.written) for index, name in self._inputs]
        if model.takes_dict:
            arguments = [dict(zip(self._names, arguments, strict=True))]
        try:
            result = self._call(*arguments)
        except Exception as error:
            raise run_error(error, self._shapes_vary) from None
        return {name: self._output(result, name) for name in outputs}

    def close(self) -> None:
        """Release the module. On a GPU, return its memory to the driver."""
        self._model = None
        del self._call
        if self._stream is not None:
            torch.cuda.empty_cache()

    def _mode(self) -> AbstractContextManager[None]:
        mode: AbstractContextManager[None]
        mode = torch.inference_mode() if self._settings.inference_mode else torch.no_grad()
        return mode

    def _argument(
        self, array: Tensor | DeviceTensor | None, name: str, written: bool
    ) -> torch.Tensor | list[str] | None:
        if array is None:
            return None  # the input is an Optional[Tensor], and the request omits it
        if isinstance(array, DeviceTensor):
            return array.tensor.to(self._device, copy=written)
        if name in self._strings:
            return to_strings(array, name)
        tensor = to_torch(array, copy=written and self._stream is None)
        return tensor if self._stream is None else tensor.to(self._device, non_blocking=True)

    def _output(self, result: object, name: str) -> Tensor | DeviceTensor:
        value = self._pick(result, name)
        if isinstance(value, list) and all(isinstance(element, str) for element in value):
            return from_strings(value).reshape(len(value), *self._string_dims.get(name, []))
        if not isinstance(value, torch.Tensor):
            raise internal(f"the model's output '{name}' is a {type(value).__name__}, expected a tensor")
        array = to_device_tensor(value, name) if self._stay_on_device else to_numpy(value, name)
        if array.dtype != self._dtypes[name]:
            raise internal(
                f"the model's output '{name}' is {array.dtype}, but the configuration says {self._dtypes[name]}"
            )
        return array

    def _pick(self, result: object, name: str) -> object:
        if isinstance(result, torch.Tensor):
            result = (result,)
        if isinstance(result, dict):
            if name in result:
                return result[name]
            result = list(result.values())
        elif isinstance(result, list) and result and isinstance(result[0], str):
            result = (result,)
        index, count = self._output_index[name], len(result) if isinstance(result, list | tuple) else 0
        if not isinstance(result, list | tuple) or index >= count:
            raise internal(f"the model returned {count} outputs, but '{name}' is number {index}")
        found: object = result[index]
        return found


def _unoptimized(call: Call) -> Call:
    def run(*arguments: object) -> object:
        with torch.jit.optimized_execution(False):
            return call(*arguments)

    return run


def _placed_inputs(config: ModelConfig, model: TorchModel) -> list[str]:
    """Return the name of the configured input for each argument, in the order of the call."""
    names = [*(entry.name for entry in config.input), *fed_by_scheduler(config)]
    if model.takes_dict:
        return names
    indexes = positions(names, model.arguments)
    count = len(model.arguments)
    by_index = dict(zip(indexes, names, strict=True))
    if sorted(by_index) != list(range(len(names))) or not model.required <= len(names) <= count:
        arguments = ", ".join(model.arguments)
        raise invalid(
            f"the model's forward takes {count} inputs ({arguments}), but the configuration has {', '.join(names)}"
        )
    return [by_index[index] for index in range(len(names))]

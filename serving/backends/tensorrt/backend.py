"""The TensorRT backend: instances on one device share one engine, and each has its own contexts and CUDA stream.

torch's caching allocator provides the device memory. The parameters are the ones of Triton's tensorrt_backend (README). As in
Triton, `instance_group { profile: [...] }` selects optimisation profiles.
"""

import copy
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.signature import Signature
from serving.backends.base.backend import ArrayInstance, Backend, ModelSpec, Outputs
from serving.backends.base.parameters import Parameters
from serving.backends.base.signature import complete_config
from serving.backends.tensorrt.api import ExecutionContext
from serving.backends.tensorrt.engine import Engine, choose_profile, engine_signature, why_missing
from serving.core.batch import Batch
from serving.core.datatypes import BY_CONFIG, Tensor
from serving.core.device_tensor import DeviceTensor, host_array
from serving.core.devices import Device
from serving.core.errors import internal, invalid, not_found, unavailable

if TYPE_CHECKING:
    import torch

_STRATEGIES = {"STATIC": "STATIC", "ON_PROFILE_CHANGE": "ON_PROFILE_CHANGE"}
_STRATEGY = "execution_context_allocation_strategy"


class TensorrtBackend(Backend):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self._engines: dict[Device, Engine] = {}
        self._lock = threading.Lock()  # each instance is made on its own thread

    @classmethod
    def complete_config(cls, config: ModelConfig, version_dir: Path) -> None:
        """Complete the configuration from the plan. Only a machine with a GPU can read plans. Without a GPU, a configuration
        that is already complete is not checked."""
        path = _plan(version_dir / config.default_model_filename)
        complete = (
            config.input and config.output and all(t.data_type and t.dims for t in (*config.input, *config.output))
        )
        if complete and why_missing():
            return
        engine = Engine(config.name, path)
        complete_config(config, engine_signature(engine.cuda_engine, engine.inputs, engine.outputs))

    @classmethod
    def file_signature(cls, model_file: Path) -> Signature | None:
        if why_missing():
            return None
        engine = Engine(model_file.name, _plan(model_file))
        return engine_signature(engine.cuda_engine, engine.inputs, engine.outputs)

    def load(self) -> None:
        if why_missing():
            raise unavailable(f"model '{self.spec.name}' needs TensorRT, but {why_missing()}")
        parameters = Parameters.of(self.spec.config)
        parameters.warn_of_unknown({_STRATEGY, "version_compatible"})
        self._strategy = parameters.choice(_STRATEGY, _STRATEGIES, "STATIC")
        self._version_compatible = parameters.boolean("version_compatible", False)
        self.complete_config(copy.deepcopy(self.spec.config), self.spec.version_dir)

    def create_instance(self, device: Device, name: str) -> "TensorrtInstance":
        if device.kind != "gpu":
            raise unavailable(f"model '{self.spec.name}' needs a GPU: a TensorRT plan cannot run on the CPU")
        import torch

        with self._lock, torch.cuda.device(device.id):
            if device not in self._engines:
                self._engines[device] = Engine(self.spec.name, _plan(self.spec.model_file), self._version_compatible)
            engine = self._engines[device]
        return TensorrtInstance(self.spec, device, engine, _profiles(self.spec.config, name, engine), self._strategy)

    def unload(self) -> None:
        self._engines.clear()

    @classmethod
    def gpu_available(cls) -> tuple[bool, str]:
        return not why_missing(), why_missing()


def _plan(path: Path) -> Path:
    if not path.is_file():
        raise not_found(f"the version folder has no '{path.name}'")
    if path.stat().st_size == 0:
        raise invalid("the TensorRT plan is empty")
    return path


def _profiles(config: ModelConfig, instance: str, engine: Engine) -> list[int]:
    """Return the optimisation profiles that the instance's group names, or profile 0 if it names none."""
    count = engine.cuda_engine.num_optimization_profiles
    for number, group in enumerate(config.instance_group):
        if instance.rpartition("_")[0] == (group.name or f"{config.name}_{number}") and group.profile:
            for name in group.profile:
                if not name.isdecimal() or int(name) >= count:
                    raise invalid(
                        f"optimisation profile '{name}' is not in the plan, which has {count}, counted from 0"
                    )
            return [int(name) for name in group.profile]
    return [0]


class TensorrtInstance(ArrayInstance):
    """Runs an engine. The copies to the device, the execution and the copies to the host are queued on one stream."""

    def __init__(self, spec: ModelSpec, device: Device, engine: Engine, profiles: Sequence[int], strategy: str) -> None:
        import torch

        super().__init__(spec, device)
        self._engine: Engine | None = engine
        self._torch = torch
        self._device = torch.device("cuda", device.id)
        states = {state.output_name: state.data_type for state in spec.config.sequence_batching.state}
        types = {**states, **{entry.name: entry.data_type for entry in spec.config.output}}
        self._dtypes = {name: _torch_dtype(data_type) for name, data_type in types.items()}
        self._profiles = list(profiles)
        self._outputs = _Outputs(engine, self._device, self._dtypes)
        self._stay_on_device = False
        with torch.cuda.device(self._device):
            self._stream = torch.cuda.Stream(self._device)
            self._contexts = {profile: self._context(engine, profile, strategy) for profile in self._profiles}
            self._stream.synchronize()

    def _context(self, engine: Engine, profile: int, strategy: str) -> ExecutionContext:
        context = engine.context(strategy)
        if not context.set_optimization_profile_async(profile, self._stream.cuda_stream):
            raise unavailable(f"TensorRT could not select optimisation profile {profile}: {engine.last_error}")
        return context

    def execute(self, batch: Batch) -> None:
        self._stay_on_device = all(request.asked.device_outputs for request in batch.requests)
        super().execute(batch)

    def run(self, inputs: dict[str, Tensor], outputs: list[str]) -> Outputs:
        assert self._engine is not None
        torch, cuda_engine = self._torch, self._engine.cuda_engine
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            shapes = {name: tuple(tensor.shape) for name, tensor in inputs.items()}
            data = {name: s for name, s in shapes.items() if not cuda_engine.is_shape_inference_io(name)}
            context = self._contexts[choose_profile(cuda_engine, data, self._profiles)]
            held = [self._bind_input(context, name, tensor) for name, tensor in inputs.items()]
            unknown = context.infer_shapes()
            if unknown:
                raise invalid(f"the plan needs input '{unknown[0]}' to know its shapes")
            self._outputs.bind(context)
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise internal(f"TensorRT failed: {self._engine.last_error}")
            found = {name: self._outputs.tensor(name) for name in outputs}
            if not self._stay_on_device:
                found = {name: tensor.to("cpu", non_blocking=False) for name, tensor in found.items()}
            self._stream.synchronize()
            del held  # the device may have read the inputs until now
        if self._stay_on_device:
            return {name: DeviceTensor.of(tensor) for name, tensor in found.items()}
        return {name: _to_numpy(tensor, name) for name, tensor in found.items()}

    def _bind_input(self, context: ExecutionContext, name: str, tensor: Tensor) -> "Tensor | torch.Tensor":
        """Set the input's shape and address in the context. Return the tensor, which must live until the end of the run."""
        assert self._engine is not None
        if self._engine.cuda_engine.is_shape_inference_io(name):
            values = np.ascontiguousarray(host_array(tensor))  # TensorRT reads it on the host
            self._set_address(context, name, values.ctypes.data)
            return values
        bound = self._on_device(tensor)
        if not context.set_input_shape(name, tuple(bound.shape)):
            raise invalid(f"the plan does not take shape {list(bound.shape)} for input '{name}'")
        self._set_address(context, name, bound.data_ptr())
        return bound

    def _set_address(self, context: ExecutionContext, name: str, address: int) -> None:
        assert self._engine is not None
        if not context.set_tensor_address(name, address):
            raise internal(f"TensorRT refuses the memory of input '{name}': {self._engine.last_error}")

    def _on_device(self, tensor: Tensor | DeviceTensor) -> "torch.Tensor":
        if isinstance(tensor, DeviceTensor):
            return tensor.tensor.to(self._device).contiguous()
        from serving.backends.pytorch.tensors import to_torch

        return to_torch(np.ascontiguousarray(tensor)).to(self._device)

    def close(self) -> None:
        """Free the contexts before the engine. Then let torch return cached memory to the driver."""
        self._contexts.clear()
        self._engine = None
        self._torch.cuda.empty_cache()


class _Outputs:
    """Device memory for an instance's outputs. torch allocates the memory before a run, or when TensorRT asks for memory.

    One allocator is used for the whole life of the instance, because a context never releases its allocator.
    """

    def __init__(self, engine: Engine, device: "torch.device", dtypes: "dict[str, torch.dtype]") -> None:
        import torch

        self._torch, self._device, self._dtypes = torch, device, dtypes
        self._names = engine.outputs
        self._tensors: dict[str, torch.Tensor] = {}
        self._buffers: dict[str, torch.Tensor] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._allocator = engine.output_allocator(self._reallocate, self._shapes.__setitem__)

    def bind(self, context: ExecutionContext) -> None:
        """Allocate memory for one run. The context must already have its input shapes."""
        self._tensors.clear()
        self._buffers.clear()
        for name in self._names:
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape or name not in self._dtypes:
                context.set_output_allocator(name, self._allocator)
            else:
                memory = self._torch.empty(shape, dtype=self._dtypes[name], device=self._device)
                self._tensors[name] = memory
                # TensorRT needs an address even for an empty tensor.
                context.set_tensor_address(name, memory.data_ptr() or self._reallocate(name, 1))

    def tensor(self, name: str) -> "torch.Tensor":
        """Return an output of the last run, on the device."""
        if name in self._tensors:
            return self._tensors[name]
        shape, dtype = self._shapes[name], self._dtypes[name]
        size = int(np.prod(shape)) * dtype.itemsize
        return self._buffers[name][:size].view(dtype).reshape(shape)

    def _reallocate(self, name: str, size: int) -> int:
        buffer = self._torch.empty(max(size, 1), dtype=self._torch.uint8, device=self._device)
        self._buffers[name] = buffer
        return int(buffer.data_ptr())


def _torch_dtype(data_type: int) -> "torch.dtype":
    from serving.backends.pytorch.tensors import DATATYPES

    if data_type == mc.TYPE_STRING:
        raise invalid("a TensorRT plan has no strings, but the configuration has data_type TYPE_STRING")
    names = {name: dtype for dtype, name in DATATYPES.items()}
    return names[BY_CONFIG[data_type].name]


def _to_numpy(tensor: "torch.Tensor", name: str) -> Tensor:
    from serving.backends.pytorch.tensors import to_numpy

    return to_numpy(tensor, name)

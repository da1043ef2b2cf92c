"""Uses TensorRT engines through the Python API of TensorRT 10 and 11.

Source: TensorRT developer guide, "Working with Dynamic Shapes", and the Python API of IRuntime, ICudaEngine and
IExecutionContext. `tensorrt` is imported only in this module, and only if a model needs it.
"""

import functools
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from repository.config.signature import Signature, TensorSignature
from serving.backends.tensorrt.api import CudaEngine, ExecutionContext, Logger, Notify, Reallocate, Shape
from serving.core.devices import gpu_count
from serving.core.errors import ServingError, invalid, unavailable

_OLDEST = (10, 0)
# Maps the names of trt.DataType's members to KServe datatypes.
_DATATYPES = {
    "FLOAT": "FP32",
    "HALF": "FP16",
    "BF16": "BF16",
    "INT8": "INT8",
    "INT32": "INT32",
    "INT64": "INT64",
    "BOOL": "BOOL",
    "UINT8": "UINT8",
}
_VERSIONS = re.compile(r"expecting (?:library )?version ([\d.]+) got ([\d.]+)")
_ERROR_CODE = re.compile(r"^.*?Error Code \d+: ")


@functools.cache
def why_missing() -> str:
    """Return a clause that names the parts that this machine lacks for TensorRT engines; "" if it lacks none."""
    lacks = []
    try:
        trt = importlib.import_module("tensorrt")
        version = tuple(int(part) for part in trt.__version__.split(".")[:2])
        if version < _OLDEST:
            lacks.append(f"the Python package 'tensorrt' is {trt.__version__}, but 10.0 or newer is needed")
    except ImportError:
        lacks.append("the Python package 'tensorrt' is not installed")
    if not gpu_count():
        lacks.append("this machine has no CUDA device")
    elif not _torch_has_cuda():
        lacks.append("torch, which holds the device memory, was installed without CUDA")
    return " and ".join(lacks)


def _torch_has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def require_tensorrt(model: str) -> ModuleType:
    """Return the `tensorrt` module. Raises UNAVAILABLE, with all missing parts, if TensorRT cannot be used."""
    missing = why_missing()
    if missing:
        raise unavailable(f"model '{model}' needs TensorRT, but {missing}")
    return importlib.import_module("tensorrt")


class Engine:
    """A deserialised plan on one device. Execution contexts made from it share its weights."""

    def __init__(self, model: str, path: Path, version_compatible: bool = False) -> None:
        self._trt = require_tensorrt(model)
        self._logger = _logger(self._trt)
        self._runtime = self._trt.Runtime(self._logger)
        # A version-compatible plan contains its own runtime, which is code and runs only if the configuration allows it.
        self._runtime.engine_host_code_allowed = version_compatible
        cuda_engine: CudaEngine | None = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if cuda_engine is None:
            raise plan_error(self._logger.last_error, self._trt.__version__)
        self.cuda_engine = cuda_engine
        self.inputs, self.outputs = tensor_names(self.cuda_engine, self._trt.TensorIOMode.INPUT)

    @property
    def last_error(self) -> str:
        """Return TensorRT's last logged error, as a clause."""
        return _ERROR_CODE.sub("", str(self._logger.last_error)).strip(" .()") or "no reason given"

    def context(self, strategy: str) -> ExecutionContext:
        """Make an execution context; strategy: STATIC or ON_PROFILE_CHANGE, as in Triton's parameter."""
        context = self.cuda_engine.create_execution_context(
            getattr(self._trt.ExecutionContextAllocationStrategy, strategy)
        )
        if context is None:
            raise unavailable(f"TensorRT could not make an execution context: {self.last_error}")
        return context

    def output_allocator(self, reallocate: Reallocate, notify: Notify) -> object:
        """Make an IOutputAllocator that calls `reallocate` for memory and `notify` with the shapes."""
        return _allocator(self._trt, reallocate, notify)


def plan_error(message: str, version: str) -> ServingError:
    """Return the error of a plan that does not deserialise, for example because another version of TensorRT built it."""
    match = _VERSIONS.search(message)
    if match:
        return invalid(f"the plan was built by TensorRT {match[2]}, but this machine has {match[1]}: build it again")
    reason = _ERROR_CODE.sub("", message).strip(" .()")
    return invalid(f"TensorRT {version} cannot load the plan: {reason or 'it is no TensorRT plan'}")


def tensor_names(engine: CudaEngine, input_mode: object) -> tuple[list[str], list[str]]:
    """Return the names of the inputs and of the outputs, in the engine's order."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    inputs = [name for name in names if engine.get_tensor_mode(name) == input_mode]
    return inputs, [name for name in names if name not in inputs]


def engine_signature(engine: CudaEngine, inputs: Sequence[str], outputs: Sequence[str]) -> Signature:
    """Return the tensors of an engine, and the largest batch that any of its profiles takes."""
    limit = max(
        (_max_batch(engine, inputs, profile) for profile in range(engine.num_optimization_profiles)),
        default=0,
    )
    return Signature(
        tuple(_tensor(engine, name) for name in inputs),
        tuple(_tensor(engine, name) for name in outputs),
        max_batch_size=limit,
        batch_limit=limit,
    )


def _tensor(engine: CudaEngine, name: str) -> TensorSignature:
    dtype = engine.get_tensor_dtype(name).name
    if dtype not in _DATATYPES:
        raise invalid(f"tensor '{name}' is {dtype}, which the protocol cannot carry")
    return TensorSignature(name, _DATATYPES[dtype], tuple(engine.get_tensor_shape(name)))


def _max_batch(engine: CudaEngine, inputs: Sequence[str], profile: int) -> int:
    dynamic = [name for name in inputs if tuple(engine.get_tensor_shape(name))[:1] == (-1,)]
    most = [tuple(engine.get_tensor_profile_shape(name, profile)[2]) for name in dynamic]
    return min((shape[0] for shape in most), default=0)


def choose_profile(engine: CudaEngine, shapes: Mapping[str, Shape], profiles: Sequence[int]) -> int:
    """Return the profile with the nearest optimum for these input shapes. Raises INVALID_ARG if no profile allows them."""
    allowed = [profile for profile in profiles if all(_fits(engine, n, s, profile) for n, s in shapes.items())]
    if not allowed:
        raise invalid(_outside(engine, shapes, profiles))
    return min(allowed, key=lambda profile: _distance(engine, shapes, profile))


def _fits(engine: CudaEngine, name: str, shape: Shape, profile: int) -> bool:
    least, _, most = (tuple(limits) for limits in engine.get_tensor_profile_shape(name, profile))
    return len(shape) == len(least) and all(a <= size <= b for a, size, b in zip(least, shape, most, strict=True))


def _distance(engine: CudaEngine, shapes: Mapping[str, Shape], profile: int) -> int:
    return sum(
        abs(size - best)
        for name, shape in shapes.items()
        for size, best in zip(shape, tuple(engine.get_tensor_profile_shape(name, profile)[1]), strict=True)
    )


def _outside(engine: CudaEngine, shapes: Mapping[str, Shape], profiles: Sequence[int]) -> str:
    for name, shape in shapes.items():
        ranges = [engine.get_tensor_profile_shape(name, profile) for profile in profiles]
        if not any(_fits(engine, name, shape, profile) for profile in profiles):
            allowed = " or ".join(f"{list(least)} to {list(most)}" for least, _, most in ranges)
            return f"input '{name}' has shape {list(shape)}, but the plan was built for {allowed}"
    return "no optimisation profile of the plan takes these input shapes together"


def _logger(trt: ModuleType) -> Logger:
    class LastError(trt.ILogger):  # type: ignore[name-defined, misc]
        """Keeps the last error for messages."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last_error = ""

        def log(self, severity: object, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.last_error = message

    return LastError()


def _allocator(trt: ModuleType, reallocate: Reallocate, notify: Notify) -> object:
    class OutputAllocator(trt.IOutputAllocator):  # type: ignore[name-defined, misc]
        """Allocates outputs whose sizes depend on the data, when TensorRT asks for memory during a run."""

        def __init__(self) -> None:
            trt.IOutputAllocator.__init__(self)

        def reallocate_output_async(self, name: str, memory: object, size: int, alignment: int, stream: int) -> int:
            return reallocate(name, size)

        def notify_shape(self, name: str, shape: Iterable[int]) -> None:
            notify(name, tuple(shape))

    return OutputAllocator()

"""The module that a model.py imports as `triton_python_backend_utils`: the names and signatures of Triton's.

TritonModelException
 +-- NotSupportedYet     business logic scripting, decoupled responses, custom metrics, loading models from a model
"""

import json
import sys
from collections.abc import Iterable
from enum import Enum
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from serving.backends.python_child import dlpack
from serving.backends.python_child.model_config import ModelConfig
from serving.backends.python_child.tensors import BFLOAT16, TYPES, deserialize, serialize, type_of

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_RELEASE_ALL = 1
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = 2

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "Logger",
    "MetricFamily",
    "ModelConfig",
    "PreferredMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "load_model",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


# -- errors ------------------------------------------------------------------------------------------------------------
class TritonModelException(Exception):
    """Raised by a model: its text is what the client is told."""


class NotSupportedYet(TritonModelException):
    pass


def _not_supported(what: str) -> NoReturn:
    raise NotSupportedYet(f"{what} is not supported yet")


class ErrorCode(Enum):
    UNKNOWN = "UNKNOWN"
    INTERNAL = "INTERNAL"
    NOT_FOUND = "NOT_FOUND"
    INVALID_ARG = "INVALID_ARG"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    CANCELLED = "CANCELLED"


class TritonError:
    """An error for one response; INTERNAL unless a code is given."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        self._message = str(message)
        self._code = ErrorCode(code)

    def message(self) -> str:
        return self._message

    def code(self) -> ErrorCode:
        return self._code


# -- tensors -----------------------------------------------------------------------------------------------------------
class Tensor:
    """A named tensor: a numpy array on the host, or whatever came by DLPack on a GPU.

    The arrays of a request's inputs are views of shared memory and are gone when `execute` returns: copy what must stay.
    """

    __slots__ = ("_array", "_data", "_gpu", "_name", "_shape", "_type")

    def __init__(self, name: str, numpy_array: NDArray[Any]) -> None:
        if not isinstance(name, str) or not name:
            raise TritonModelException("a tensor's name must be a string that is not empty")
        if not isinstance(numpy_array, np.ndarray | np.generic):
            raise TypeError(f"tensor '{name}' must be made from a numpy array, not from {type(numpy_array).__name__}")
        array = np.asarray(numpy_array)
        self._name = name
        self._type = type_of(array)
        self._array: NDArray[Any] | None = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        self._shape = list(array.shape)
        self._data: memoryview | None = None
        self._gpu: Any = None

    @classmethod
    def _from_memory(cls, name: str, kind: str, shape: list[int], memory: Any, offset: int, length: int) -> "Tensor":
        """A view of `length` bytes of a segment; strings are read when somebody asks for them."""
        self = object.__new__(cls)
        self._name = name
        self._type = TYPES[kind]
        self._shape = shape
        self._gpu = self._array = self._data = None
        if kind == "BYTES":
            self._data = memoryview(memory)[offset : offset + length]
        else:
            self._array = np.ndarray(shape, self._type.dtype, memory, offset)
            if kind == "BF16" and BFLOAT16 is not None:
                self._array = self._array.view(BFLOAT16)
        return self

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        return self._shape

    def triton_dtype(self) -> int:
        """The number of TRITONSERVER_DataType."""
        return self._type.number

    def is_cpu(self) -> bool:
        return self._gpu is None

    def as_numpy(self) -> NDArray[Any]:
        """The array; strings as an object array of bytes. BF16 needs the ml_dtypes package."""
        if self._gpu is not None:
            raise TritonModelException(f"tensor '{self._name}' is on a GPU and cannot be given as a numpy array")
        if self._array is None:
            assert self._data is not None
            self._array = deserialize(bytes(self._data), self._shape)
        if self._type.name == "BF16" and self._array.dtype != BFLOAT16:
            raise TritonModelException(
                f"tensor '{self._name}' is BF16: use to_dlpack, or install the ml_dtypes package"
            )
        return self._array

    def to_dlpack(self) -> Any:
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, **_: Any) -> Any:
        if self._gpu is not None:
            return self._gpu.__dlpack__(stream=stream)
        if self._type.name == "BYTES":
            raise TritonModelException(f"tensor '{self._name}' holds strings, which DLPack has no type for")
        assert self._array is not None
        if self._type.name == "BF16" and BFLOAT16 is None:
            return dlpack.as_bfloat16(self._array)
        return dlpack.to_capsule(self._array)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self._gpu is None else dlpack.device(self._gpu)

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """A tensor that shares the memory of a capsule, or of an object with `__dlpack__`, in C order."""
        if dlpack.device(tensor)[0] in dlpack.CPU_DEVICES:
            array = dlpack.from_capsule(tensor)
            if not array.flags.c_contiguous:
                raise TritonModelException(f"the DLPack tensor for '{name}' is not contiguous in C order")
            return Tensor(name, array)
        return Tensor._on_gpu(name, tensor)

    @classmethod
    def _on_gpu(cls, name: str, tensor: Any) -> "Tensor":
        import torch

        gpu = tensor if isinstance(tensor, torch.Tensor) else torch.from_dlpack(tensor)
        kind = str(gpu.dtype).removeprefix("torch.")
        short = {"bool": "BOOL", "bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
        self = object.__new__(cls)
        self._name = name
        self._type = TYPES[short.get(kind, kind.upper())]
        self._shape = list(gpu.shape)
        self._array = self._data = None
        self._gpu = gpu.contiguous()
        return self

    def _host(self) -> tuple[str, NDArray[Any]]:
        """Wire datatype and a contiguous host array for the response; BF16 may come as uint16."""
        if self._gpu is None:
            if self._array is None:
                self.as_numpy()
            assert self._array is not None
            return self._type.name, self._array
        host = self._gpu.detach().cpu()
        if self._type.name == "BF16":
            import torch

            host = host.view(torch.uint16)
        return self._type.name, host.numpy()


# -- requests and responses --------------------------------------------------------------------------------------------
class _MemoryType(Enum):
    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


TRITONSERVER_MEMORY_CPU = _MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = _MemoryType.TRITONSERVER_MEMORY_GPU


class PreferredMemory:
    """Where the outputs of an inference on another model should lie."""

    def __init__(self, preferred_memory_type: _MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = preferred_memory_type
        self.preferred_device_id = preferred_device_id


class InferenceRequest:
    """One request that `execute` is to answer."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Iterable[Tensor] = (),
        requested_output_names: Iterable[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: dict[str, Any] | None = None,
        *,
        priority: int = 0,
    ) -> None:
        self._id = request_id
        self._correlation_id = correlation_id
        self._inputs = list(inputs)
        self._requested = list(requested_output_names)
        self._flags = flags
        self._timeout = timeout
        self._priority = priority
        self._parameters = parameters or {}
        self._is_cancelled: Any = None  # set by the servant: asks the server
        self._sender: InferenceResponseSender | None = None

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def request_id(self) -> str:
        return self._id

    def correlation_id(self) -> int | str:
        return self._correlation_id

    def flags(self) -> int:
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds; 0 for none."""
        return self._timeout

    def priority(self) -> int:
        return self._priority

    def parameters(self) -> str:
        """A JSON object as text."""
        return json.dumps(self._parameters)

    def requested_output_names(self) -> list[str]:
        return self._requested

    def is_cancelled(self) -> bool:
        return bool(self._is_cancelled()) if self._is_cancelled is not None else False

    def get_response_sender(self) -> "InferenceResponseSender":
        if self._sender is None:
            self._sender = InferenceResponseSender(self)
        return self._sender

    def _release(self) -> None:
        """`execute` is over: let go of the shared memory, even if the model keeps the request."""
        self._inputs = []
        self._sender = None

    def set_release_flags(self, flags: int) -> None:
        if flags != TRITONSERVER_REQUEST_RELEASE_ALL:
            _not_supported("rescheduling a request")

    def exec(self, decoupled: bool = False) -> NoReturn:
        _not_supported("an inference on another model (business logic scripting)")

    def async_exec(self, decoupled: bool = False) -> NoReturn:
        _not_supported("an inference on another model (business logic scripting)")


class InferenceResponse:
    """Output tensors, or an error in their place."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = dict(parameters) if parameters else {}
        for key, value in self._parameters.items():
            if not isinstance(key, str) or not isinstance(value, str | int | float):
                raise TritonModelException("response parameters must be strings, numbers or booleans, by name")
        for tensor in self._outputs:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"output_tensors must be pb_utils.Tensor objects, not {type(tensor).__name__}")

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters)


class InferenceResponseSender:
    """Answers a request from inside `execute`, in place of returning the response: exactly one, before it returns."""

    def __init__(self, request: InferenceRequest) -> None:
        self._request = request
        self._response: InferenceResponse | None = None
        self._closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if self._closed:
            raise TritonModelException("the final response of this request was sent before")
        if response is not None:
            if self._response is not None:
                raise TritonModelException("a model that is not decoupled sends exactly one response for each request")
            self._response = response
        self._closed = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if self._closed and self._response is None:
            raise TritonModelException("a model that is not decoupled sends exactly one response for each request")

    def is_cancelled(self) -> bool:
        return self._request.is_cancelled()


# -- logging -----------------------------------------------------------------------------------------------------------
class _LogLevel(Enum):
    INFO = "I"
    WARNING = "W"
    ERROR = "E"
    VERBOSE = "V"


class Logger:
    """Writes to the server's log, at any time and from any thread."""

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    @staticmethod
    def log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
        """One line of stderr: 0x1e and the level mark it for the server, 0x1f stands for a line break."""
        text = str(message).replace("\n", "\x1f")
        sys.stderr.write(f"\x1e{level.value}{text}\n")

    @staticmethod
    def log_info(message: str) -> None:
        Logger.log(message, _LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        Logger.log(message, _LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        Logger.log(message, _LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        Logger.log(message, _LogLevel.VERBOSE)


# -- what needs the server ---------------------------------------------------------------------------------------------
class MetricFamily:
    COUNTER = "COUNTER"
    GAUGE = "GAUGE"
    HISTOGRAM = "HISTOGRAM"

    def __init__(self, name: str, description: str, kind: str) -> None:
        _not_supported("a custom metric")


def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> NoReturn:
    _not_supported("loading a model from a model")


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    _not_supported("unloading a model from a model")


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    _not_supported("asking whether another model is ready")


# -- helpers -----------------------------------------------------------------------------------------------------------
_model_dir = ""  # set by the servant


def get_model_dir() -> str:
    """The folder of the version whose model.py this is."""
    return _model_dir


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((one for one in model_config.get("input", []) if one["name"] == name), None)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((one for one in model_config.get("output", []) if one["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    f"TYPE_{'STRING' if row.name == 'BYTES' else row.name}": row.dtype.type
    for row in TYPES.values()
    if row.name != "BF16"
}
if BFLOAT16 is not None:
    TRITON_STRING_TO_NUMPY["TYPE_BF16"] = BFLOAT16.type


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """ "TYPE_FP32" -> numpy.float32; KeyError for an unknown name."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a TRITONSERVER_DataType number; None for an unknown one."""
    for row in TYPES.values():
        if row.number == data_type:
            return TRITON_STRING_TO_NUMPY.get(f"TYPE_{'STRING' if row.name == 'BYTES' else row.name}")
    return None


def numpy_to_triton_type(data_type: Any) -> int:
    """The TRITONSERVER_DataType number of a numpy type or dtype."""
    return type_of(np.empty(0, data_type)).number


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> bytes:
    return serialize(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[Any]:
    """The strings of a serialized tensor, as a flat object array of bytes."""
    count = offset = 0
    while offset < len(encoded_tensor):
        offset += 4 + int.from_bytes(encoded_tensor[offset : offset + 4], "little")
        count += 1
    return deserialize(bytes(encoded_tensor), [count])

"""The module that a model.py imports as `triton_python_backend_utils`: the same names and signatures as in Triton."""

import sys
from base64 import b64encode
from enum import Enum

import numpy as np
from numpy.typing import DTypeLike

from serving.backends.channel.messages import Load, ModelReady, Unload
from serving.backends.channel.tensors import BFLOAT16, TYPES, Array, deserialize, serialize, type_of
from serving.child_program.link.errors import TritonError, TritonModelException
from serving.child_program.pb_utils.checks import text
from serving.child_program.pb_utils.inference import MemoryType, PreferredMemory
from serving.child_program.pb_utils.metrics import Metric, MetricFamily
from serving.child_program.pb_utils.model_config import JsonObject, ModelConfig
from serving.child_program.pb_utils.process import PROCESS, server
from serving.child_program.pb_utils.request import (
    TRITONSERVER_REQUEST_RELEASE_ALL,
    TRITONSERVER_REQUEST_RELEASE_RESCHEDULE,
    InferenceRequest,
)
from serving.child_program.pb_utils.response import InferenceResponse
from serving.child_program.pb_utils.response_sender import TRITONSERVER_RESPONSE_COMPLETE_FINAL, InferenceResponseSender
from serving.child_program.pb_utils.tensor import Tensor

TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2

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
    "Metric",
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
        """Write one line to stderr. The line begins with 0x1e and the level, for the server. 0x1f replaces line breaks."""
        if not isinstance(level, _LogLevel):
            raise TypeError(f"level must be one of Logger's, not {level!r:.100}")
        line = text("message", message).replace("\n", "\x1f")
        sys.stderr.write(f"\x1e{level.value}{line}\n")

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


# -- calls to the server -----------------------------------------------------------------------------------------------
def load_model(model_name: str, config: str = "", files: dict[str, bytes] | None = None) -> None:
    """Load or reload a model of the repository. config: JSON. files: maps a name such as "file:1/model.onnx" to its content."""
    coded = {name: b64encode(content).decode() for name, content in (files or {}).items()}
    message: Load = {"op": "load", "model": text("model_name", model_name), "config": config, "files": coded}
    server().ask(message)


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unload a model. unload_dependents: also unload the steps of an ensemble."""
    message: Unload = {
        "op": "unload",
        "model": text("model_name", model_name),
        "dependents": bool(unload_dependents),
    }
    server().ask(message)


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Return whether a model is ready. model_version: "" means any version."""
    message: ModelReady = {
        "op": "ready",
        "model": text("model_name", model_name),
        "version": str(model_version),
    }
    return bool(server().ask(message))


# -- helpers -----------------------------------------------------------------------------------------------------------
def get_model_dir() -> str:
    """Return the folder of the version whose model.py runs in this process."""
    return PROCESS.model_dir


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return _named(inference_request.inputs(), name)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return _named(inference_response.output_tensors(), name)


def _named(tensors: list[Tensor], name: str) -> Tensor | None:
    for tensor in tensors:
        if tensor._name == name:
            return tensor
    return None


def get_input_config_by_name(model_config: JsonObject, name: str) -> JsonObject | None:
    return next((one for one in model_config.get("input", []) if one["name"] == name), None)


def get_output_config_by_name(model_config: JsonObject, name: str) -> JsonObject | None:
    return next((one for one in model_config.get("output", []) if one["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: JsonObject) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


TRITON_STRING_TO_NUMPY: dict[str, type[np.generic]] = {
    f"TYPE_{'STRING' if row.name == 'BYTES' else row.name}": row.dtype.type
    for row in TYPES.values()
    if row.name != "BF16"
}
if BFLOAT16 is not None:
    TRITON_STRING_TO_NUMPY["TYPE_BF16"] = BFLOAT16.type


def triton_string_to_numpy(triton_type_string: str) -> type[np.generic]:
    """Return the numpy type of a name, such as numpy.float32 for "TYPE_FP32". Raises KeyError for an unknown name."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> type[np.generic] | None:
    """Return the numpy type of a TRITONSERVER_DataType number, or None for an unknown number."""
    for row in TYPES.values():
        if row.number == data_type:
            return TRITON_STRING_TO_NUMPY.get(f"TYPE_{'STRING' if row.name == 'BYTES' else row.name}")
    return None


def numpy_to_triton_type(data_type: DTypeLike) -> int:
    """Return the TRITONSERVER_DataType number of a numpy type or dtype."""
    return type_of(np.empty(0, data_type)).number


def serialize_byte_tensor(input_tensor: Array) -> bytes:
    """Return a tensor of strings in the protocol's binary form."""
    return serialize(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """Return the strings of a serialized tensor, as a flat object array of bytes."""
    count = offset = 0
    while offset < len(encoded_tensor):
        offset += 4 + int.from_bytes(encoded_tensor[offset : offset + 4], "little")
        count += 1
    return deserialize(bytes(encoded_tensor), [count])

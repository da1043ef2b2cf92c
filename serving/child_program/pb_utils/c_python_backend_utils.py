"""The module that a model.py imports as `c_python_backend_utils`: the part of the API that Triton implements in C++.

Models import it for `shared_memory`; they should import the other names from `triton_python_backend_utils`. Source:
triton-inference-server/python_backend, src/pb_stub.cc.
"""

from serving.child_program.link.errors import TritonError, TritonModelException
from serving.child_program.pb_utils.inference import MemoryType, PreferredMemory
from serving.child_program.pb_utils.metrics import Metric, MetricFamily, MetricKind
from serving.child_program.pb_utils.process import PROCESS
from serving.child_program.pb_utils.request import InferenceRequest
from serving.child_program.pb_utils.response import InferenceResponse
from serving.child_program.pb_utils.response_sender import InferenceResponseSender
from serving.child_program.pb_utils.tensor import Tensor
from serving.child_program.pb_utils.triton_python_backend_utils import (
    TRITONSERVER_MEMORY_CPU,
    TRITONSERVER_MEMORY_GPU,
    Logger,
    is_model_ready,
    load_model,
    unload_model,
)

__all__ = [
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "is_model_ready",
    "load_model",
    "shared_memory",
    "unload_model",
]


class SharedMemory:
    """The shared memory in which this process passes outputs to the server."""

    def free_memory(self) -> int:
        """Return how many bytes are mapped and not in use. The pool has no fixed size: it maps more memory if needed."""
        return PROCESS.outputs.free_bytes if PROCESS.outputs is not None else 0


shared_memory = SharedMemory()

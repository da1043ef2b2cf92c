"""pb_utils.PreferredMemory: where the outputs of an inference on another model should lie."""

from enum import Enum

from serving.child_program.pb_utils.errors import TritonModelException
from serving.child_program.pb_utils.parameters import whole_number


class MemoryType(Enum):
    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = MemoryType(preferred_memory_type)
        self.preferred_device_id = whole_number("preferred_device_id", preferred_device_id)


def torch_device(preferred: PreferredMemory | None) -> str:
    """The GPU to copy outputs to, as torch names it; "" for the host. TritonModelException where there is no such GPU."""
    if preferred is None or preferred.preferred_memory_type is MemoryType.TRITONSERVER_MEMORY_CPU:
        return ""
    try:
        import torch

        gpus = torch.cuda.device_count()
    except ImportError:
        gpus = 0
    number = preferred.preferred_device_id
    if number >= gpus:
        raise TritonModelException(f"preferred_memory asks for GPU {number}, but torch shows {gpus} GPUs to this model")
    return f"cuda:{number}"

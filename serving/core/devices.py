"""Finds this machine's devices without importing a framework, and the GPUs that a model's instances may use."""

import functools
from collections.abc import Mapping
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from serving.core.errors import unavailable


class Device(NamedTuple):
    """`kind` is "cpu" or "gpu"; `id` counts the GPUs from 0 and is 0 on the CPU."""

    kind: str
    id: int = 0

    def __str__(self) -> str:
        return f"gpu:{self.id}" if self.kind == "gpu" else "cpu"


CPU = Device("cpu")


@functools.cache
def gpu_count() -> int:
    """Return the number of CUDA devices that the NVIDIA driver reports; 0 if there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def compute_capability(gpu: int) -> str:
    """Return the CUDA compute capability of a GPU, such as "9.0"; "" if there is no such GPU."""
    import pynvml

    if gpu >= gpu_count():
        return ""
    return "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(gpu)))


def used_memory(gpu: int) -> float:
    """Return the share of a GPU's memory that is in use by any process; 0 if there is no such GPU."""
    import pynvml

    if gpu >= gpu_count():
        return 0.0
    memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu))
    return float(memory.used) / float(memory.total)


def gpus_of(config: ModelConfig) -> list[int]:
    """Return the GPUs that a model's instances may run on."""
    open_kinds = (ModelInstanceGroup.KIND_GPU, ModelInstanceGroup.KIND_AUTO)
    named = [group.gpus or range(gpu_count()) for group in config.instance_group if group.kind in open_kinds]
    return sorted({gpu for gpus in named for gpu in gpus}) if config.instance_group else list(range(gpu_count()))


def model_filename(config: ModelConfig) -> str:
    """Return the file to load: the entry of `cc_model_filenames` for the model's first GPU, else `default_model_filename`."""
    gpus = gpus_of(config) if config.cc_model_filenames else []
    capability = compute_capability(gpus[0]) if gpus else ""
    return str(config.cc_model_filenames.get(capability) or config.default_model_filename)


def refuse_on_full_gpus(config: ModelConfig, limits: Mapping[int, float]) -> None:
    """Raise UNAVAILABLE if the used memory of one of the model's GPUs exceeds its --model-load-gpu-limit."""
    for gpu in gpus_of(config):
        limit = limits.get(gpu)
        if limit is not None and (used := used_memory(gpu)) > limit:
            raise unavailable(
                f"'{config.name}' is not loaded, memory limit set for GPU {gpu} has exceeded: "
                f"{used:.0%} of the memory of GPU {gpu} is in use, over the limit of {limit:.0%}"
            )

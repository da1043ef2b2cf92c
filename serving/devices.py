"""Which devices this machine has, without importing a framework, and where an instance goes."""

import functools
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Device(NamedTuple):
    """`kind` is "cpu" or "gpu"; `id` counts the GPUs from 0 and is 0 on the CPU."""

    kind: str
    id: int = 0

    def __str__(self) -> str:
        return f"gpu:{self.id}" if self.kind == "gpu" else "cpu"


CPU = Device("cpu")


@functools.cache
def gpu_count() -> int:
    """The number of CUDA devices that the NVIDIA driver shows; 0 where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return 0


def host_array(tensor: Any) -> NDArray[Any]:
    """The tensor itself when it is a numpy array; a copy on the host of anything else with `__dlpack__`."""
    if isinstance(tensor, np.ndarray):
        return tensor
    import torch

    array: NDArray[Any] = torch.from_dlpack(tensor).cpu().numpy()
    return array

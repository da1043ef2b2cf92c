"""Which devices this machine has, without importing a framework, and where an instance goes."""

import functools
import logging
from typing import NamedTuple

log = logging.getLogger(__name__)


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

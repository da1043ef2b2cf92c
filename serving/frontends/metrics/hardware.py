"""Reads the usage of this server's processes, the machine's CPU and memory, and its GPUs, on demand and off the event loop.

Source of the GPU values: NVML, through nvidia-ml-py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import psutil
import pynvml

from serving.resources.process_memory import descendants
from serving.resources.sampling import Sample

log = logging.getLogger(__name__)

T = TypeVar("T")
GpuHandle = object  # an opaque handle of NVML


class ProcessUsage(NamedTuple):
    """The usage of the server. RSS and CPU seconds include its child processes; CPU seconds also those that have ended.
    Threads are only those of the server."""

    rss_bytes: int
    cpu_seconds: float
    threads: int


class Gpu(NamedTuple):
    """One GPU. Values that the driver does not report are None. utilization: from 0 to 1. memory: in bytes. power: in watts.
    energy: in joules, since the server started."""

    uuid: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None


class Host(NamedTuple):
    """The machine. cpu_utilization: the mean of all cores since the previous reading, from 0 to 1. memory: in bytes."""

    cpu_utilization: float
    memory_total: int
    memory_used: int


class HardwareReadings(Protocol):
    """The readings that the metrics show."""

    def process(self) -> ProcessUsage: ...

    def host(self) -> Host: ...

    def gpus(self) -> list[Gpu]: ...


class Hardware:
    """Reads the values on the caller's thread, which may take long. Keeps the handles of the GPUs, and their initial energy."""

    def __init__(self, gpus: bool = True) -> None:
        self._process = psutil.Process()
        self._cpu_seconds = 0.0
        self._gpus = _gpu_handles() if gpus else []
        self._energy_at_start = [_read(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu) for _, gpu in self._gpus]
        psutil.cpu_percent()  # the first call only sets the starting point

    def process(self) -> ProcessUsage:
        rss = 0
        cpu = 0.0
        for process in (self._process, *descendants(self._process)):
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss += process.memory_info().rss
                    # A process keeps the times of its ended children, so that the sum does not fall when one ends.
                    cpu += times.user + times.system + times.children_user + times.children_system
            except psutil.NoSuchProcess:
                continue
        # A child that ends during this reading may be missing in it. A counter that falls would look like a restart.
        self._cpu_seconds = max(self._cpu_seconds, cpu)
        return ProcessUsage(rss, round(self._cpu_seconds, 3), self._process.num_threads())

    def host(self) -> Host:
        memory = psutil.virtual_memory()
        return Host(psutil.cpu_percent() / 100, memory.total, memory.total - memory.available)

    def gpus(self) -> list[Gpu]:
        return [
            _gpu(uuid, handle, base) for (uuid, handle), base in zip(self._gpus, self._energy_at_start, strict=True)
        ]


class SampledHardware:
    """The latest readings of a Hardware. A GPU driver that hangs does not delay other readings."""

    def __init__(self, hardware: Hardware, interval_s: float = 0.0) -> None:
        """interval_s: shortest time between two readings of the host and the GPUs, so that frequent calls do not shorten the
        period over which CPU utilization is averaged."""
        self._process = Sample("server's processes", hardware.process)
        self._host = Sample("machine", hardware.host, interval_s)
        self._gpus = Sample("GPUs", hardware.gpus, interval_s)

    async def refreshed(self) -> None:
        """Wait until all values have been read again, up to a timeout."""
        await asyncio.gather(*(one.refreshed() for one in (self._process, self._host, self._gpus)))

    def process(self) -> ProcessUsage:
        return self._process.latest

    def host(self) -> Host:
        return self._host.latest

    def gpus(self) -> list[Gpu]:
        return self._gpus.latest


def _gpu_handles() -> list[tuple[str, GpuHandle]]:
    """Return the UUID and the handle of each GPU; an empty list if there is no driver."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [(str(pynvml.nvmlDeviceGetUUID(handle)), handle) for handle in handles]
    except pynvml.NVMLError as error:
        log.debug("no GPU metrics: %s", error)
        return []


def _gpu(uuid: str, handle: GpuHandle, energy_at_start: int | None) -> Gpu:
    rates = _read(pynvml.nvmlDeviceGetUtilizationRates, handle)
    memory = _read(pynvml.nvmlDeviceGetMemoryInfo, handle)
    power = _read(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _read(pynvml.nvmlDeviceGetPowerManagementLimit, handle)
    energy = _read(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    return Gpu(
        uuid=uuid,
        utilization=None if rates is None else rates.gpu / 100,
        memory_used=None if memory is None else int(memory.used),
        memory_total=None if memory is None else int(memory.total),
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        energy_j=None if energy is None or energy_at_start is None else (energy - energy_at_start) / 1000,
    )


def _read(function: Callable[[GpuHandle], T], handle: GpuHandle) -> T | None:
    """Return a value of a GPU, or None if NVML does not report it."""
    try:
        return function(handle)
    except pynvml.NVMLError:
        return None

"""What the metrics read of processes and GPUs is read off the loop, once at a time, whatever hangs."""

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest

from serving.frontends.metrics.hardware import Gpu, Hardware, ProcessUsage, SampledHardware
from serving.resources import sampling
from serving.resources.memory import ChildMemory
from tests.support.serving_process import PATIENCE_S

GPU = Gpu("GPU-0", 0.5, 1, 2, 3.0, 4.0, 5.0)


class HangingDriver(Hardware):
    """A double of a machine whose GPU's driver stops to answer: none here has one."""

    def __init__(self) -> None:
        super().__init__(gpus=False)
        self.hangs = False
        self.released = threading.Event()
        self.readers: list[threading.Thread] = []
        self.processes_read = 0

    def gpus(self) -> list[Gpu]:
        self.readers.append(threading.current_thread())
        if self.hangs:
            self.released.wait(PATIENCE_S)
        return [GPU._replace(energy_j=float(len(self.readers)))]

    def process(self) -> ProcessUsage:
        self.processes_read += 1
        return ProcessUsage(self.processes_read, 0.0, 1)


@pytest.fixture
def driver() -> Iterator[HangingDriver]:
    driver = HangingDriver()
    yield driver
    driver.released.set()


@pytest.mark.asyncio
async def test_a_driver_that_hangs_keeps_its_last_value_and_piles_up_no_threads(
    driver: HangingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = SampledHardware(driver)
    await hardware.refreshed()
    assert hardware.gpus()[0].energy_j == 2
    driver.hangs = True
    with monkeypatch.context() as hurried:
        hurried.setattr(sampling, "PATIENCE_S", 0.5)
        for _ in range(3):
            await hardware.refreshed()
    assert hardware.gpus()[0].energy_j == 2
    assert len(driver.readers) == 3
    assert hardware.process().rss_bytes == driver.processes_read == 5, "what does not hang is read on"
    assert threading.main_thread() not in driver.readers[1:]
    driver.hangs = False
    driver.released.set()
    driver.readers[-1].join(PATIENCE_S)
    await hardware.refreshed()
    assert hardware.gpus()[0].energy_j == 4


@pytest.mark.asyncio
async def test_the_loop_runs_on_while_something_is_read(driver: HangingDriver) -> None:
    hardware = SampledHardware(driver)
    driver.hangs = True
    asyncio.get_running_loop().call_later(0.01, driver.released.set)
    began = time.monotonic()
    await hardware.refreshed()
    assert hardware.gpus()[0].energy_j == 2
    assert time.monotonic() - began < PATIENCE_S, "the loop was held up, so that it could not let the driver go"


@pytest.mark.asyncio
async def test_a_reading_that_raises_keeps_the_last_value(
    driver: HangingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[int | None] = [1, None, 2]

    def read() -> int:
        number = readings.pop(0)
        if number is None:
            raise OSError("the file has gone")
        return number

    sample = sampling.Sample("numbers", read)
    await sample.refreshed()
    assert sample.latest == 1
    await sample.refreshed()
    assert sample.latest == 2


@pytest.mark.asyncio
async def test_the_memory_of_children_is_read_off_the_loop_and_forgotten_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers: list[threading.Thread] = []
    sizes = {1: 10, 2: 20}

    def read(pid: int) -> int:
        readers.append(threading.current_thread())
        return sizes[pid]

    monkeypatch.setattr("serving.resources.memory.private_bytes", read)
    memory = ChildMemory()
    assert memory.of([1, 2]) == 30
    readers.clear()
    sizes |= {1: 11, 2: 0}
    assert memory.of([1, 2]) == 30
    await memory.refreshed()
    assert memory.of([1]) == 11
    assert len(readers) == 2
    assert threading.main_thread() not in readers
    readers.clear()
    await memory.refreshed()
    assert len(readers) == 1, "a process that has ended is read for ever"

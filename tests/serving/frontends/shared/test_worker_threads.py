"""Work on worker threads: its result, its error, and its end where it is abandoned."""

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import weakref

import pytest

from serving.frontends.shared.worker_threads import THREADS, checkpoint, in_thread
from tests.support.serving_process import PATIENCE_S, ROOT


def test_results_and_errors_come_back() -> None:
    async def main() -> None:
        assert await in_thread(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await in_thread(divmod, 7, 0)
        many = await asyncio.gather(*(in_thread(pow, 2, number) for number in range(10 * THREADS)))
        assert many == [2**number for number in range(10 * THREADS)]

    asyncio.run(main())


class Data:
    """What a job works on."""


def test_objects_of_failed_work_are_freed_at_once() -> None:
    def fail(data: Data) -> None:
        raise ValueError

    async def main() -> None:
        data = Data()
        held = weakref.ref(data)
        with contextlib.suppress(ValueError):
            await in_thread(fail, data)
        del data
        while held() is not None:  # the worker may still be on its way out of it
            await asyncio.sleep(0)

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    finally:
        gc.enable()


def test_abandoned_work_ends_at_its_next_checkpoint_or_does_not_begin() -> None:
    begun, ended = threading.Event(), threading.Event()
    late: list[int] = []

    def work() -> None:
        begun.set()
        try:
            while True:
                checkpoint()
        finally:
            ended.set()

    async def main() -> None:
        running = [asyncio.create_task(in_thread(work)) for _ in range(THREADS)]
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        waiting = asyncio.create_task(in_thread(late.append, 1))
        await asyncio.sleep(0)
        for task in (waiting, *running):
            task.cancel()
        await asyncio.to_thread(ended.wait, PATIENCE_S)
        await in_thread(lambda: None)

    asyncio.run(main())
    assert not late


def test_a_process_ends_without_its_work() -> None:
    program = """
import asyncio, threading
from serving.frontends.shared.worker_threads import in_thread
begun = threading.Event()
def work():
    begun.set()
    threading.Event().wait()
async def main():
    asyncio.ensure_future(in_thread(work))
    while not begun.is_set():
        await asyncio.sleep(0.01)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=PATIENCE_S, check=True)

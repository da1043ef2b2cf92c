"""Runs work that would hold up the event loop on worker threads: `await in_thread(function, ...)`.

Work that is not wanted any more ends early: if the awaiting task is cancelled, because its client has gone, the function ends
at its next `checkpoint()`, or does not begin. The threads are daemons, so that the process ends without waiting for them.
"""

import asyncio
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

THREADS = max(4, min(32, os.cpu_count() or 1))


class AbandonedError(Exception):
    """The work is not wanted any more. The error ends the job, and is caught on its thread."""


class _Job(Generic[T]):
    """One call, and the future that waits for it."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.call = call
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self.loop.create_future()
        self.abandoned = False

    def run(self) -> None:
        if self.abandoned:
            return
        _running.job = self
        try:
            self._resolve(self.result.set_result, self.call())
        except BaseException as error:
            self._resolve(self.result.set_exception, error)
        finally:
            _running.job = None
            del self  # or an error, whose traceback has this frame, would refer to itself

    def _resolve(self, set_outcome: Callable[[V], None], value: V) -> None:
        if self.abandoned:
            return
        try:
            self.loop.call_soon_threadsafe(lambda: None if self.result.done() else set_outcome(value))
        except RuntimeError:  # the loop has been closed meanwhile
            pass


_running = threading.local()


class _Threads:
    """The worker threads and their waiting jobs. If there are more jobs than threads, a new job starts a thread, up to
    THREADS."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started: list[threading.Thread] = []
        self._busy = 0  # jobs that wait or run
        self._lock = threading.Lock()  # for the two fields above: jobs come from any loop's thread

    def add(self, job: Callable[[], None]) -> None:
        """Run the job on a thread as soon as one is free."""
        with self._lock:
            self._busy += 1
            if self._busy > len(self._started) and len(self._started) < THREADS:
                thread = threading.Thread(target=self._work, name="worker", daemon=True)
                self._started.append(thread)
                thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            job()
            del job  # or its result would live until the next job
            with self._lock:
                self._busy -= 1


_threads = _Threads()  # of the process


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `function` on a worker thread; return what it returns, or raise what it raises."""
    job = _Job(lambda: function(*arguments, **named))
    _threads.add(job.run)
    try:
        return await job.result
    except asyncio.CancelledError:
        job.abandoned = True
        raise
    finally:
        del job  # or an error, whose traceback has this frame, would refer to itself


def checkpoint() -> None:
    """Called between pieces of long work. AbandonedError if the awaiting task has been cancelled."""
    job = getattr(_running, "job", None)
    if job is not None and job.abandoned:
        raise AbandonedError

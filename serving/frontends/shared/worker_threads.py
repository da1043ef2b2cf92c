"""Runs work that would block the event loop on worker threads: `await in_thread(function, ...)`.

If the awaiting task is cancelled, because its client has disconnected, the function ends at its next `checkpoint()`, or does
not begin. The threads are daemons, so that the process ends without waiting for them.
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
    """Raised by `checkpoint` to end a job whose awaiting task has been cancelled."""


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
            del self  # breaks a reference cycle: the traceback of an error has this frame

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
        self._busy = 0  # number of jobs that wait or run
        self._lock = threading.Lock()  # protects _started and _busy, because any event loop may add jobs

    def add(self, job: Callable[[], None]) -> None:
        """Run the job when a thread is free."""
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
            del job  # otherwise its result would be kept until the next job
            with self._lock:
                self._busy -= 1


_threads = _Threads()  # the only instance in the process


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call `function` on a worker thread. Return its result, or raise its exception."""
    job = _Job(lambda: function(*arguments, **named))
    _threads.add(job.run)
    try:
        return await job.result
    except asyncio.CancelledError:
        job.abandoned = True
        raise
    finally:
        del job  # breaks a reference cycle: the traceback of an error has this frame


def checkpoint() -> None:
    """Call this between pieces of long work. Raises AbandonedError if the awaiting task has been cancelled."""
    job = getattr(_running, "job", None)
    if job is not None and job.abandoned:
        raise AbandonedError

"""Keeps the process of a model instance alive: starts it again when it has died, later and later where it keeps dying."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import close_all
from serving.backends.channel.messages import Initialize
from serving.backends.child.calls import ChildCalls
from serving.backends.child.codec import decode_error
from serving.backends.child.process import ChildDied, ChildProcess
from serving.backends.environments.interpreter import Interpreter
from serving.core.errors import ServingError, internal, unavailable, unexpected
from serving.resources.child_watch import ChildWatch
from serving.resources.runtime import HEARTBEAT_TIMEOUT_S

log = logging.getLogger(__name__)

FINALIZE_GRACE_S = 10.0
MAX_BACK_OFF_S = 60.0
LONGEST_WAIT_S = 2.0  # a request waits this long for a restart that is being held back, not longer
# A model whose process has been silent for so long is not ready; a shorter time-out halves it.
NOT_READY_AFTER_S = 10.0


class ModelChild(ChildProcess):
    """A child process that runs a model, and what answers its own calls."""

    def __init__(self, name: str, python: Interpreter, spec: ModelSpec) -> None:
        super().__init__(name, python)
        self.calls = ChildCalls(self, spec)

    def _free(self) -> None:
        self.calls.join()
        super()._free()


class ChildSupervisor:
    """Keeps one child alive: starts it again when it has died, at once the first time, then ever later.

    The instance's thread holds `in_use` while it works with the child; the watch looks after what happens between batches.

    name: of the instance. initialize: the child's first message. python: the interpreter that it runs under.
    stream_bound_s: how long a decoupled model may take for its next response; None without a bound.
    """

    def __init__(
        self,
        spec: ModelSpec,
        name: str,
        initialize: Initialize,
        python: Interpreter,
        stream_bound_s: float | None = None,
    ) -> None:
        """Start the child and have it load the model. ServingError with the whole reason where it does not."""
        self.in_use = threading.Lock()
        runtime = spec.runtime
        self._heartbeat_timeout_s = HEARTBEAT_TIMEOUT_S if runtime is None else runtime.heartbeat_timeout_s
        self._not_ready_after_s = min(NOT_READY_AFTER_S, self._heartbeat_timeout_s / 2)
        self._stream_bound_s = stream_bound_s
        self._spec = spec
        self._name = name
        self._initialize = initialize
        self._python = python
        self._deaths = 0
        self._due = 0.0
        self._closing = threading.Event()
        self._child: ModelChild | None = None
        self._error: ServingError | None = None
        self._restarting: Future[None] | None = None
        self._has_is_ready = False
        self._thread = _StartingThread(f"{name}-start")
        self._watch = ChildWatch() if runtime is None else runtime.child_watch
        self._watch.add(self)
        try:
            with self.in_use:
                self._thread.submit(self._start).result()
        except BaseException:
            self._watch.remove(self)
            self._thread.close()
            raise

    def child(self) -> ModelChild:
        """Return the living child. Waits for one that is starting; UNAVAILABLE while a restart is held back or has failed."""
        if self._restarting is None:
            assert self._child is not None
            if self._child.alive():
                return self._child
            log.warning("%s: %s between two requests", self._name, self._child.end())
            self.restart()
        assert self._restarting is not None
        wait = self._due - time.monotonic()
        if wait > LONGEST_WAIT_S:
            raise unavailable(f"{self._name}: {self._held_back(wait)}")
        self._restarting.result()
        self._restarting = None
        if self._error is None:
            assert self._child is not None
            return self._child
        error = self._error
        self.restart()
        raise unavailable(f"{self._name}: the model's process could not be restarted: {error.message}")

    def processes(self) -> list[int]:
        """Return the child's process id, where there is a child. Any thread."""
        child = self._child
        return [] if child is None else [child.pid]

    def restart(self) -> None:
        """Start again in the background, so that the next batch finds it ready or waits as briefly as possible."""
        self._child = None
        delay = 0.0 if self._deaths == 0 else min(2.0 ** (self._deaths - 1), MAX_BACK_OFF_S)
        self._deaths += 1
        self._due = time.monotonic() + delay
        log.warning("%s: the process is restarted in %g s (%d in a row)", self._name, delay, self._deaths)
        self._restarting = self._thread.submit(lambda: self._restart(delay))

    def available(self) -> bool:
        """Return False while the child is silent, or a start is held back for longer than a request would wait. Any thread."""
        child = self._child
        if child is not None and child.heartbeat.silent_s > self._not_ready_after_s:
            return False
        return self._restarting is None or self._due - time.monotonic() <= LONGEST_WAIT_S

    def unready_reason(self) -> str:
        """Return why it would not answer at once; "" where it would. Any thread."""
        child = self._child
        if child is not None and child.heartbeat.silent_s > self._not_ready_after_s:
            return f"its process has given no sign of life for {child.heartbeat.silent_s:.0f} s"
        if self._restarting is None:
            return ""
        wait = self._due - time.monotonic()
        return self._held_back(wait) if wait > LONGEST_WAIT_S else "its process is being started again"

    def look(self, elapsed_s: float) -> None:
        """End a child that hangs; between two batches also start one that has ended. On the watch's thread."""
        child = self._child
        if child is not None:
            silent_s = child.listen(elapsed_s)
            if silent_s > self._not_ready_after_s:
                child.calls.readiness.unheard()
            if silent_s >= self._heartbeat_timeout_s:
                child.give_up(f"the model's process gave no sign of life for {silent_s:.0f} s and was ended")
            elif self._stream_bound_s is not None and child.calls.requests.overdue(self._stream_bound_s):
                child.give_up(f"the model's process gave no response for {self._stream_bound_s:g} s and was ended")
        if self.in_use.acquire(blocking=False):
            try:
                self._revive()
            finally:
                self.in_use.release()

    def readiness(self) -> "Future[bool] | None":
        """Ask the model whether it is ready; None where it has no say. It is not while its process is restarted. Any thread."""
        child = self._child
        if not self._has_is_ready:
            return None
        if child is not None and self._restarting is None:
            return child.calls.readiness.ask()
        answer: Future[bool] = Future()
        answer.set_result(False)
        return answer

    def succeeded(self) -> None:
        """Note that a batch was executed: the next restart is at once again."""
        self._deaths = 0

    def close(self) -> None:
        """Let the model finalize within the grace; a start that is under way is broken off."""
        self._closing.set()
        with self.in_use:
            if self._restarting is not None:
                child = self._child
                if child is not None:
                    child.end(grace_s=0)
                self._restarting.result()
            elif self._child is not None:
                self._child.calls.requests.wait()
                self._child.finalize(FINALIZE_GRACE_S)
            self._child = None
        self._watch.remove(self)
        self._thread.close()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _held_back(self, wait_s: float) -> str:
        reason = f" ({self._error.message})" if self._error is not None else ""
        return f"the model's process keeps ending{reason}; the next start is in {wait_s:.0f} s"

    def _revive(self) -> None:
        """Start a child that has ended. No request is needed for that: a model that is not ready may get none."""
        if self._closing.is_set():
            return
        if self._restarting is None:
            if self._child is not None and not self._child.alive():
                log.warning("%s: %s between two requests", self._name, self._child.end())
                self.restart()
        elif self._restarting.done():
            self._restarting = None
            if self._error is not None:
                self.restart()

    # -- on the starting thread ------------------------------------------------------------------------------------
    def _restart(self, delay: float) -> None:
        error: ServingError | None = None
        try:
            if not self._closing.wait(delay):
                self._start()
        except Exception as failure:  # whoever waits for the child is told
            error = unexpected(failure, "restarting a model's process")
        self._error = error
        if self._closing.is_set() and self._child is not None:
            self._child.end(grace_s=0)

    def _start(self) -> None:
        """Start a child and have it load the model; ServingError with the whole reason."""
        self._child = child = ModelChild(self._name, self._python, self._spec)
        try:
            answer, received = child.exchange(self._initialize)
            close_all(received)
            if answer.get("op") == "ready":
                self._has_is_ready = answer.get("has_is_ready") is True
                return
            error = decode_error((answer.get("code"), answer.get("message")))
        except ChildDied as died:
            error = internal(f"{died} before it was ready: {child.last_words()}".removesuffix(": "))
        child.end()
        raise error


class _StartingThread:
    """Starts the children of one instance: the kernel ends a process with the thread that started it, so this one stays.

    It has the processor affinity of the thread that makes it, and so has every child.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, job: Callable[[], None]) -> "Future[None]":
        """Have it run a job behind those that it has. The future gives what the job raises."""
        done: Future[None] = Future()
        self._jobs.put((job, done))
        return done

    def close(self) -> None:
        """Let the thread end, once it has no job left."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, done = item
            try:
                job()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)
            del item, job, done  # or a child that failed to start would stay until the next job

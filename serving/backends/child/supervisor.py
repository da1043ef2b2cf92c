"""Keeps the process of a model instance alive: restarts it when it has died, with growing delays if it dies repeatedly."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from queue import SimpleQueue

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.messages import Initialize
from serving.backends.child.bounds import Bounds
from serving.backends.child.calls import ChildCalls
from serving.backends.child.codec import decode_failed
from serving.backends.child.open_requests import quietly
from serving.backends.child.process import ChildDied, ChildProcess
from serving.backends.environments.interpreter import Interpreter
from serving.core.errors import ServingError, internal, unavailable, unexpected
from serving.core.log_context import about

log = logging.getLogger(__name__)

FINALIZE_GRACE_S = 10.0
MAX_BACK_OFF_S = 60.0
LONGEST_WAIT_S = 2.0  # the longest time that a request waits for a delayed restart
# A model whose process has been silent for this time, or for half the heartbeat timeout if that is shorter, is not ready.
NOT_READY_AFTER_S = 10.0


class ModelChild(ChildProcess):
    """A child process that runs a model, and the server's end of its link."""

    def __init__(self, name: str, python: Interpreter, spec: ModelSpec) -> None:
        super().__init__(name, python)
        self.calls = ChildCalls(self, spec)

    def _free(self) -> None:
        self.calls.join()
        super()._free()


class ChildSupervisor:
    """Keeps one child alive. A child that has died is restarted, the first time immediately, then after a growing delay.

    On the loop's thread, the supervisor gives its owner each child that is ready, and the owner reports each child that has
    died. On the watch's thread, the supervisor checks whether the child hangs.
    """

    def __init__(
        self,
        spec: ModelSpec,
        name: str,
        initialize: Initialize,
        python: Interpreter,
        on_started: Callable[[ModelChild], None],
        on_failed: Callable[[ServingError], None],
        bounds: Bounds,
    ) -> None:
        """Start the child and let it load the model. Raises ServingError with the whole reason if that fails.

        name: the name of the instance. initialize: the child's first message. python: the interpreter of the child. on_started:
        called on the loop's thread with each child that has loaded the model. on_failed: called on the loop's thread with the
        reason if a restarted child has not loaded the model. bounds: time limits for the start, and for the next response of a
        decoupled model.
        """
        runtime = spec.require_runtime()
        self._loop = runtime.loop
        self._heartbeat_timeout_s = runtime.heartbeat_timeout_s
        self._not_ready_after_s = min(NOT_READY_AFTER_S, self._heartbeat_timeout_s / 2)
        self._bounds = bounds
        self._spec = spec
        self._name = name
        self._initialize = initialize
        self._python = python
        self._on_started = on_started
        self._on_failed = on_failed
        self._deaths = 0
        self._due = 0.0
        self._down_since: float | None = None  # when the last child died; None while a child is ready
        self._closing = threading.Event()
        self._child: ModelChild | None = None
        self._loaded = False  # True after the first load has succeeded
        self._failure = ""  # why the last start failed; "" if it succeeded
        self._restarting: Future[None] | None = None
        self._has_is_ready = False
        self._thread = _StartingThread(f"{name}-start")
        self._watch = runtime.child_watch
        self._watch.add(self)
        try:
            self._thread.submit(self._start).result()
        except BaseException:
            self._watch.remove(self)
            self._thread.close()
            raise
        self._loaded = True
        self._loop.call_soon_threadsafe(self._started)

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def restart(self, died: ModelChild | None) -> None:
        """End and free the child, if there is one, and start another one in the background."""
        delay = 0.0 if self._deaths == 0 else min(2.0 ** (self._deaths - 1), MAX_BACK_OFF_S)
        self._deaths += 1
        now = time.monotonic()
        self._due = now + delay
        if self._down_since is None:
            self._down_since = now
        with about(self._spec.name, self._spec.version):
            log.warning("%s: the process is restarted in %g s (%d in a row)", self._name, delay, self._deaths)
        self._child = None
        self._restarting = self._thread.submit(lambda: self._restart(died, delay))

    def refusal(self) -> ServingError | None:
        """Return the error for a batch that should not wait for the next child, or None if the batch may wait."""
        wait = self._due - time.monotonic()
        return unavailable(f"{self._name}: {self._held_back(wait)}") if wait > LONGEST_WAIT_S else None

    def succeeded(self) -> None:
        """Note that a batch was executed, so that the next restart has no delay."""
        self._deaths = 0

    def _started(self) -> None:
        """Give the owner the child that the starting thread has started."""
        self._restarting = None
        if self._closing.is_set():
            return
        if not self._failure:
            assert self._child is not None
            self._down_since = None
            self._on_started(self._child)
            return
        reason = unavailable(f"{self._name}: the model's process could not be restarted: {self._failure}")
        self.restart(None)
        self._on_failed(reason)

    # -- on any thread ---------------------------------------------------------------------------------------------
    def processes(self) -> list[int]:
        child = self._child
        return [] if child is None else [child.pid]

    def available(self) -> bool:
        """Return False while the child is silent, or a restart is delayed for longer than a request would wait."""
        child = self._child
        if child is not None and child.heartbeat.silent_s > self._not_ready_after_s:
            return False
        return self._restarting is None or self._due - time.monotonic() <= LONGEST_WAIT_S

    def unready_reason(self) -> str:
        """Return why the child cannot answer now; "" if it can."""
        child = self._child
        if child is not None and child.heartbeat.silent_s > self._not_ready_after_s:
            return f"its process has given no sign of life for {child.heartbeat.silent_s:.0f} s"
        if self._restarting is None:
            return ""
        wait = self._due - time.monotonic()
        return self._held_back(wait) if wait > LONGEST_WAIT_S else "its process is being started again"

    def down_s(self) -> float:
        """Return the seconds since a child last had the model loaded; 0 if a child has it loaded now."""
        since = self._down_since
        return 0.0 if since is None else time.monotonic() - since

    def readiness(self) -> "Future[bool] | None":
        """Ask the model whether it is ready. Return None without `is_ready`, and False while its process restarts."""
        child = self._child
        if not self._has_is_ready:
            return None
        if child is not None and self._restarting is None:
            return child.calls.readiness.ask()
        answer: Future[bool] = Future()
        answer.set_result(False)
        return answer

    def check(self, elapsed_s: float) -> None:
        """Kill the child if it hangs. Called on the watch's thread."""
        child = self._child
        if child is None:
            return
        silent_s = child.listen(elapsed_s)
        if silent_s > self._not_ready_after_s:
            child.calls.readiness.unheard()
        if silent_s >= self._heartbeat_timeout_s:
            child.give_up(f"the model's process gave no sign of life for {silent_s:.0f} s and was ended")
        elif (bound_s := self._bounds.execution_s) is not None and child.calls.requests.overdue(bound_s):
            child.give_up(f"the model's process gave no response for {bound_s:g} s and was ended")

    def break_off(self, model: str, reason: str) -> None:
        """Kill the child if it is loading the model for the first time. The load fails with `reason`."""
        child = self._child
        if not self._loaded and child is not None and model == self._spec.name:
            child.give_up(f"the model's process was ended, for {reason},")

    def close(self) -> None:
        """Let the model finalize within FINALIZE_GRACE_S, or kill a child that is starting. Called on the instance's thread
        after the loop's thread has detached the child."""
        self._closing.set()
        restarting, child = self._restarting, self._child
        if restarting is not None:
            if child is not None:
                child.end(grace_s=0)
            restarting.result()
            if self._child is not None:
                self._child.end(grace_s=0)
        elif child is not None:
            child.calls.requests.wait()
            child.finalize(FINALIZE_GRACE_S)
        self._child = None
        self._watch.remove(self)
        self._thread.close()

    def _held_back(self, wait_s: float) -> str:
        reason = f" ({self._failure})" if self._failure else ""
        return f"the model's process keeps ending{reason}; the next start is in {wait_s:.0f} s"

    # -- on the starting thread ------------------------------------------------------------------------------------
    def _restart(self, died: ModelChild | None, delay: float) -> None:
        reason = ""
        try:
            if died is not None:
                died.end()
            if not self._closing.wait(delay):
                self._start()
        except Exception as failure:  # the waiting requests are answered with this error
            reason = unexpected(failure, "restarting a model's process").message
        self._failure = reason
        if not self._closing.is_set():
            quietly(self._loop.call_soon_threadsafe, self._started)
        elif self._child is not None:
            self._child.end(grace_s=0)

    def _start(self) -> None:
        """Start a child and let it load the model. Raises ServingError with the whole reason if that fails."""
        self._child = child = ModelChild(self._name, self._python, self._spec)
        try:
            answer = child.exchange(self._initialize, self._bounds.start_s)
            if answer.get("op") == "ready":
                self._has_is_ready = answer.get("has_is_ready") is True
                return
            error = decode_failed(answer)
        except ChildDied as died:
            error = internal(f"{died} before it was ready: {child.last_words()}".removesuffix(": "))
        except TimeoutError:
            child.give_up("")
            error = internal(
                f"the model's process took longer than {self._bounds.start_s:g} s to start, which is its bound by "
                f"{self._bounds.start_named}"
            )
        child.end()
        raise error


class _StartingThread:
    """Starts the children of one instance. The thread lives as long as the children, because the kernel kills a process when
    the thread that started it ends.

    The thread and every child have the processor affinity of the thread that creates this object.
    """

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        # The log lines of the thread and of its children are marked with the model.
        threading.Thread(target=copy_context().run, args=(self._run,), name=name, daemon=True).start()

    def submit(self, job: Callable[[], None]) -> "Future[None]":
        """Queue a job. The returned future is done after the job, and has the job's exception, if any."""
        done: Future[None] = Future()
        self._jobs.put((job, done))
        return done

    def close(self) -> None:
        """Let the thread end after its last job."""
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
            del item, job, done  # otherwise a child that failed to start would exist until the next job

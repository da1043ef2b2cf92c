"""A model instance: one backend instance, and the thread that makes it, executes batches on it and closes it.

The backend instance's type decides how a batch is executed. Schedulers see no difference.

thread   a BlockingInstance: the instance's thread executes batches one after the other.
loop     a BlockingInstance that may run on any thread, and whose executions are short: the loop's thread executes
         batches inside `execute`, because a switch of threads would take longer than the execution.
async    an AsyncInstance: its batches begin on the loop's thread, and are executed elsewhere.

In each case, `on_batch_done` is called once for each batch, on the loop's thread.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from serving.backends.base.backend import AsyncInstance, Backend, BackendInstance, BlockingInstance, ModelSpec
from serving.cli.option_values import Cores
from serving.core.batch import Batch, Send
from serving.core.errors import ServingError, internal, unavailable, unexpected, without_addresses, without_paths
from serving.core.in_flight import InFlightRequest
from serving.core.log_context import about
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import OVERHEAD
from serving.execution.crash_trace import runner
from serving.execution.execution_times import ALWAYS, NEVER, ExecutionTimes
from serving.execution.instance_groups import Placement
from serving.extensions.tensor_parameters import write_large_outputs
from serving.resources.host_policy import bind_thread
from serving.resources.loop_time import LoopTime

log = logging.getLogger(__name__)

OnBatchDone = Callable[["Instance", Batch], None]

# The longest work that may wait in an instance's own queue, where a request can be neither reordered nor cancelled.
AHEAD_NS = 10_000_000
MAX_AHEAD = 7  # the most batches that may wait for an instance's thread


def ignore_progress() -> None:
    """Do nothing. For callers that do not count warm-up batches."""


class Instance:
    """One instance of a model. A scheduler owns it.

    slots: how many batches it may have; more than one if they are short. bound: how many batches it has. ahead: the number of
    requests in each batch that waits behind another one. The scheduler sets `bound` and `ahead`.
    """

    def __init__(
        self,
        backend: Backend,
        placement: Placement,
        loop: asyncio.AbstractEventLoop,
        loop_time: LoopTime,
        on_batch_done: OnBatchDone,
        on_sent: Send,
        decoupled: bool = False,
        cores: Cores | None = None,
    ) -> None:
        """Both callbacks are called on the loop's thread.

        on_batch_done: takes each executed batch, perhaps before `execute` returns. on_sent: takes the answers sent
        apart from the batch's responses, such as all answers of a decoupled model. loop_time: limits executions on the loop.
        cores: the cores that the thread may use.
        """
        self.placement = placement
        self.name = placement.name
        self.device = placement.device
        # The groups of all GPUs give their instances the same names.
        self.label = placement.name if placement.device.kind == "cpu" else f"{placement.name} on {placement.device}"
        self.slots = 1
        self.bound = 0
        self.ahead: deque[int] = deque()
        self._max_ahead = 0 if decoupled else MAX_AHEAD
        self._on_batch_done = on_batch_done
        self._on_sent = on_sent
        self._decoupled = decoupled
        self._backend = backend
        self._executing = runner("executing", backend.spec.name, backend.spec.version, backend.spec.model_file)
        self._cores = cores
        self._impl = BackendInstance(placement.device)  # replaced by the backend's instance while that is loaded
        self._work: SimpleQueue[Batch | None] = SimpleQueue()  # the batches for the thread; None ends it
        self._run_batch: Callable[[Batch], None] | None = None  # the `execute` method of a BlockingInstance
        self._begin: Callable[[Batch], None] = self._work.put
        self._times = ExecutionTimes(0)
        self._inline_bound_ns = 0
        self._loop = loop
        self._loop_time = loop_time
        self._finished: deque[Batch] = deque()  # batches that the thread has executed and the loop has not taken yet
        self._announced = False  # True while a call of `_take_finished` is scheduled
        self._started: asyncio.Future[None] = loop.create_future()
        # Gets one list of batches, which the thread executes before any other batch.
        self._warmups: SimpleQueue[list[Batch]] = SimpleQueue()
        self._on_warmed: Callable[[], None] = ignore_progress
        self._warmed: asyncio.Future[None] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._own_thread: threading.Thread | None = None

    async def start(self) -> None:
        """Make the backend's instance. Raises ServingError."""
        self._own_thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._own_thread.start()
        await self._started

    async def warm_up(self, batches: list[Batch], on_each: Callable[[], None] = ignore_progress) -> None:
        """Run warm-up batches, once for each instance, before it accepts other batches. Raises ServingError.

        on_each: called after each batch, on any thread."""
        self._on_warmed = on_each
        impl = self._impl
        self._warmups.put(batches)
        await self._warmed
        if isinstance(impl, AsyncInstance):
            self._max_ahead = impl.slots - 1
            self._begin = self._begin_elsewhere
            for batch in batches:
                await self._warm_up(impl, batch)
                on_each()
        elif isinstance(impl, BlockingInstance) and impl.any_thread and self._cores is None and not self._decoupled:
            impl.enter_loop()
            self._begin = self._run_or_hand_over
            self._times.set_bound(self._inline_bound_ns)

    def set_inline_bound(self, nanoseconds: int) -> None:
        """Set the time below which executions run on the loop's thread, if the backend's instance may run on any thread."""
        self._inline_bound_ns = nanoseconds
        # An instance that never runs on the loop gets no bound, because `_done` would give its thread fewer batches.
        if self._begin == self._run_or_hand_over:
            self._times.set_bound(nanoseconds)

    def execute(self, batch: Batch) -> None:
        """Execute a batch, or hand it over for execution. `on_batch_done` is called when it has run."""
        batch.instance = self.label
        for request in batch.requests:
            request.started = True
            if request.asked.output_targets:
                batch.to_memory = True
        self._begin(batch)

    def send(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        """Hand an answer to the loop's thread immediately, apart from the batch's responses. Callable on any thread except the
        loop's, because it blocks while the client of a decoupled model does not read."""
        flow = request.responder.flow if self._decoupled and not request.finished else None
        if flow is not None and isinstance(answer, InferenceResponse) and not answer.size:  # 0: not counted yet
            answer.size = OVERHEAD + sum(output.nbytes for output in answer.outputs.values())
            if not flow.wait(answer.size):
                answer, final = unavailable("the client took no response for too long"), True
        self._loop.call_soon_threadsafe(self._on_sent, request, answer, final)

    def processes(self) -> list[int]:
        """Return the ids of the child processes that the instance runs in."""
        return self._impl.processes()

    def available(self) -> bool:
        """Return whether the instance would answer now. It would not while the restart of its process is delayed."""
        return self._impl.available()

    def down_s(self) -> float:
        """Return the seconds since the instance's process ended; 0 if it runs, or if the instance needs no process."""
        return self._impl.down_s()

    def unready_reason(self) -> str:
        """Return the name of the instance and the reason why it cannot answer now; "" if it can."""
        reason = self._impl.unready_reason()
        return reason and f"{self.name}: {reason}"

    def readiness(self) -> "Future[bool] | None":
        """Ask the model itself whether this instance is ready. Return None if the model has no method for that."""
        return self._impl.readiness()

    async def stop(self) -> None:
        """Free the instance. Nothing may be executing."""
        if self._own_thread is not None:
            self._warmups.put([])  # if the instance was never warmed up, its thread still waits for a list
            self._work.put(None)
            await self._stopped

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def _run_or_hand_over(self, batch: Batch) -> None:
        on_loop = self._times.on_loop(batch.size)
        loop_time = self._loop_time
        if (
            on_loop == NEVER
            or self.bound > 1  # the thread has batches, and an instance executes one batch at a time
            or (
                loop_time.in_flight > len(batch.requests)  # other requests need the loop
                and (on_loop != ALWAYS or (loop_time.left_ns <= 0 and not loop_time.refilled()))
            )
        ):
            self._work.put(batch)
            return
        batch.inline = True
        self._execute(batch)
        loop_time.spend(batch.started_ns, batch.ended_ns)
        self._times.add(batch.size, batch.ended_ns - batch.started_ns, inline=True)
        # With none of the loop's time left, the next batches may go to the thread, which may get several at once.
        self.slots = 1 if loop_time.left_ns > 0 else self._slots_for(batch)
        self._on_batch_done(self, batch)

    def _begin_elsewhere(self, batch: Batch) -> None:
        impl = self._impl
        assert isinstance(impl, AsyncInstance)
        self._begin_on(impl, batch, self._executed_elsewhere)

    def _begin_on(self, impl: AsyncInstance, batch: Batch, done: Callable[[Batch], None]) -> None:
        batch.started_ns = time.monotonic_ns()
        if self._decoupled:
            self._begin_stream(batch)
        try:
            impl.begin(batch, done)
        except Exception as error:
            batch.fail(self._as_error(error))
            self._loop.call_soon(done, batch)  # after `execute` returns, as for other batches

    def _executed_elsewhere(self, batch: Batch) -> None:
        batch.ended_ns = time.monotonic_ns()
        if batch.to_memory:  # the thread writes large outputs into shared memory
            self._work.put(batch)
        else:
            self._done(batch)

    async def _warm_up(self, impl: AsyncInstance, batch: Batch) -> None:
        done: asyncio.Future[Batch] = self._loop.create_future()
        self._begin_on(impl, batch, done.set_result)
        self._check_warm_up(await done)

    def _check_warm_up(self, batch: Batch) -> None:
        failed = next((answer for answer in batch.responses if isinstance(answer, ServingError)), None)
        if failed is not None:
            raise ServingError(failed.code, f"failed to run warmup: {failed.message}")

    def _take_finished(self) -> None:
        """Take the batches that the thread has finished. For later batches, the thread schedules another call."""
        self._announced = False
        finished = self._finished
        while finished:
            try:
                self._done(finished.popleft())
            except Exception as error:  # the other finished batches still get their answers
                unexpected(error, "taking a batch back")

    def _done(self, batch: Batch) -> None:
        times = self._times
        times.add(batch.size, batch.ended_ns - batch.started_ns, inline=False)
        # The thread must finish all its batches before executions move back to the loop, so it gets no further batch.
        self.slots = 1 if times.on_loop(batch.size) == ALWAYS else self._slots_for(batch)
        self._on_batch_done(self, batch)

    def _slots_for(self, batch: Batch) -> int:
        """Return how many batches like this one the thread may have: those that it executes within AHEAD_NS, and one more."""
        ahead = AHEAD_NS // (self._times.estimate_ns(batch.size) or AHEAD_NS * 2)
        return 1 + (ahead if ahead < self._max_ahead else self._max_ahead)

    # -- on the instance's thread ----------------------------------------------------------------------------------
    def _run(self) -> None:
        spec = self._backend.spec
        with about(spec.name, spec.version):
            self._live(spec)

    def _live(self, spec: ModelSpec) -> None:
        try:
            bind_thread(self._cores)
            loading = runner("loading", spec.name, spec.version, spec.model_file)
            self._impl = impl = loading(self._backend.create_instance, self.device, self.name)
        except BaseException as error:
            self._tell(self._started, self._as_error(error))
            self._tell(self._stopped)
            return
        self._tell(self._started)
        try:
            batches = self._warmups.get()
            if isinstance(impl, BlockingInstance):
                self._run_batch = impl.execute
                for batch in batches:
                    self._execute(batch)
                    self._check_warm_up(batch)
                    self._on_warmed()
        except BaseException as error:
            self._tell(self._warmed, self._as_error(error))
        else:
            self._tell(self._warmed)
            self._serve(impl)
        finally:
            self._impl = BackendInstance(self.device)
            self._run_batch = None
            try:
                impl.close()
            except Exception:
                log.exception("instance %s did not close cleanly", self.name)
            self._tell(self._stopped)

    def _serve(self, impl: BackendInstance) -> None:
        get, finished = self._work.get, self._finished
        step = self._execute if isinstance(impl, BlockingInstance) else self._write_large
        while (batch := get()) is not None:
            step(batch)
            finished.append(batch)
            del batch  # frees its tensors while the thread waits for the next batch
            if not self._announced:
                self._announced = True
                self._loop.call_soon_threadsafe(self._take_finished)

    # -- on either thread ------------------------------------------------------------------------------------------
    def _execute(self, batch: Batch) -> None:
        assert self._run_batch is not None
        batch.started_ns = time.monotonic_ns()
        if self._decoupled:
            self._begin_stream(batch)
        try:
            self._executing(self._run_batch, batch)
        except BaseException as error:  # a model may raise SystemExit, but the thread must continue
            batch.fail(self._as_error(error))
        if batch.to_memory:
            self._write_large(batch)
        batch.ended_ns = time.monotonic_ns()

    def _begin_stream(self, batch: Batch) -> None:
        for request in batch.requests:
            if request.stream is not None:
                request.stream.begin(batch.started_ns)

    def _write_large(self, batch: Batch) -> None:
        try:
            write_large_outputs(batch.requests, batch.responses)
        except Exception as error:
            batch.fail(self._as_error(error))

    def _tell(self, future: "asyncio.Future[None]", error: ServingError | None = None) -> None:
        def resolve() -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(resolve)
        except RuntimeError:  # the loop is closed: the server did not wait for this instance
            log.debug("instance %s ended after its server", self.name)

    def _as_error(self, error: BaseException) -> ServingError:
        if isinstance(error, ServingError):
            return error
        spec = self._backend.spec
        with about(spec.name, spec.version):
            log.error("instance %s failed", self.name, exc_info=error)
        text = without_paths(without_addresses(str(error)))
        return internal(f"{type(error).__name__}: {text}" if text else type(error).__name__)

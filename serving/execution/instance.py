"""A model instance: one thread that makes one backend instance and executes batches on it, one at a time."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from serving.backends.base.backend import Backend, BackendInstance
from serving.cli.option_values import Cores
from serving.core.batch import Batch, Send
from serving.core.errors import ServingError, internal, unavailable, without_addresses, without_paths
from serving.core.in_flight import InFlightRequest
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import OVERHEAD
from serving.execution.crash_trace import runner
from serving.execution.instance_groups import Placement
from serving.extensions.tensor_parameters import write_large_outputs
from serving.resources.host_policy import bind_thread

log = logging.getLogger(__name__)

OnBatchDone = Callable[["Instance", Batch], None]


class Instance:
    """Owned by a scheduler. One hand-off to the thread and one back for each batch."""

    def __init__(
        self,
        backend: Backend,
        placement: Placement,
        loop: asyncio.AbstractEventLoop,
        on_batch_done: OnBatchDone,
        on_sent: Send,
        decoupled: bool = False,
        cores: Cores | None = None,
    ) -> None:
        """Both callbacks are called on the loop's thread.

        on_batch_done: takes each batch that has been executed. on_sent: takes what the model answers outside of a batch's
        responses. decoupled: it answers all its requests so. cores: which the thread is bound to.
        """
        self.placement = placement
        self.name = placement.name
        self.device = placement.device
        self._on_batch_done = on_batch_done
        self._on_sent = on_sent
        self._decoupled = decoupled
        self._backend = backend
        self._executing = runner("executing", backend.spec.name, backend.spec.version, backend.spec.model_file)
        self._cores = cores
        self._impl: BackendInstance | None = None  # from when it is loaded until it is closed
        self._loop = loop
        self._batches: SimpleQueue[Batch | None] = SimpleQueue()
        self._started: asyncio.Future[None] = loop.create_future()
        self._stopped: asyncio.Future[None] = loop.create_future()
        self._thread: threading.Thread | None = None

    async def start(self, warmup: list[Batch]) -> None:
        """Make the backend's instance and run the warm-up batches on it; raises ServingError."""
        self._thread = threading.Thread(target=self._run, args=(warmup,), name=self.name, daemon=True)
        self._thread.start()
        await self._started

    def execute(self, batch: Batch) -> None:
        """Hand a batch over; `on_batch_done` is called when it has run."""
        for request in batch.requests:
            request.started = True
        self._batches.put(batch)

    def send(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        """Hand an answer to the loop's thread at once, outside of a batch's responses. Any thread but the loop's: it waits
        while the client of a decoupled model does not read."""
        flow = request.responder.flow if self._decoupled and not request.finished else None
        if flow is not None and isinstance(answer, InferenceResponse) and not answer.size:  # else it is counted
            answer.size = OVERHEAD + sum(output.nbytes for output in answer.outputs.values())
            if not flow.wait(answer.size):
                answer, final = unavailable("the client took no response for too long"), True
        self._loop.call_soon_threadsafe(self._on_sent, request, answer, final)

    def processes(self) -> list[int]:
        """Return the ids of the processes that it runs in, besides the server's."""
        impl = self._impl
        return [] if impl is None else impl.processes()

    def available(self) -> bool:
        """Return whether it would answer now; False while its process is held back after crashes."""
        impl = self._impl
        return impl is None or impl.available()

    def unready_reason(self) -> str:
        """Return why it would not answer at once, with its name; "" where it would."""
        impl = self._impl
        reason = "" if impl is None else impl.unready_reason()
        return reason and f"{self.name}: {reason}"

    def readiness(self) -> "Future[bool] | None":
        """Ask the model itself whether this instance is ready; None where it has no say."""
        impl = self._impl
        return None if impl is None else impl.readiness()

    async def stop(self) -> None:
        """Free the instance. Nothing may be executing."""
        if self._thread is not None:
            self._batches.put(None)
            await self._stopped

    # -- on the instance's thread ----------------------------------------------------------------------------------
    def _run(self, warmup: list[Batch]) -> None:
        try:
            bind_thread(self._cores)
            spec = self._backend.spec
            loading = runner("loading", spec.name, spec.version, spec.model_file)
            self._impl = impl = loading(self._backend.create_instance, self.device, self.name)
        except BaseException as error:
            self._tell(self._started, self._as_error(error))
            self._tell(self._stopped)
            return
        try:
            for batch in warmup:
                self._execute(impl, batch)
                failed = next((answer for answer in batch.responses if isinstance(answer, ServingError)), None)
                if failed is not None:
                    raise ServingError(failed.code, f"failed to run warmup: {failed.message}")
        except BaseException as error:
            self._tell(self._started, self._as_error(error))
        else:
            self._tell(self._started)
            self._serve(impl)
        finally:
            self._impl = None
            try:
                impl.close()
            except Exception:
                log.exception("instance %s did not close cleanly", self.name)
            self._tell(self._stopped)

    def _serve(self, impl: BackendInstance) -> None:
        get = self._batches.get
        call_soon = self._loop.call_soon_threadsafe
        while (batch := get()) is not None:
            self._execute(impl, batch)
            call_soon(self._done, batch)
            del batch  # or its tensors would stay until the next batch comes

    def _execute(self, impl: BackendInstance, batch: Batch) -> None:
        batch.started_ns = time.monotonic_ns()
        if self._decoupled:
            for request in batch.requests:
                if request.stream is not None:
                    request.stream.begin(batch.started_ns)
        try:
            self._executing(impl.execute, batch)
            write_large_outputs(batch.requests, batch.responses)
        except BaseException as error:  # a model may raise SystemExit: its thread has to go on
            batch.fail(self._as_error(error))
        batch.ended_ns = time.monotonic_ns()

    def _tell(self, future: "asyncio.Future[None]", error: ServingError | None = None) -> None:
        def settle() -> None:
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop closed: the server gave up waiting for this instance
            log.debug("instance %s ended after its server", self.name)

    def _as_error(self, error: BaseException) -> ServingError:
        if isinstance(error, ServingError):
            return error
        log.error("instance %s failed", self.name, exc_info=error)
        text = without_paths(without_addresses(str(error)))
        return internal(f"{type(error).__name__}: {text}" if text else type(error).__name__)

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def _done(self, batch: Batch) -> None:
        self._on_batch_done(self, batch)

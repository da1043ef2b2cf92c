"""A model instance in a child process. The event loop itself sends batches and reads answers, without a thread in between.
Batches are sent as they come, up to SLOTS before the first one is answered, and are answered in order. The tensors of batches
are in shared memory. A worker thread does the work that would block the loop: large copies, many strings.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait

from serving.backends.base.backend import AsyncInstance, ModelSpec
from serving.backends.channel.channel import Closed, ProtocolError, close_all
from serving.backends.channel.messages import Execute, Initialize
from serving.backends.channel.shared_memory import Segment
from serving.backends.child.bounds import Bounds, configured_bounds
from serving.backends.child.codec import MALFORMED, Encoded, RequestEncoder, SharedMemory
from serving.backends.child.open_requests import ResponsePace, quietly
from serving.backends.child.results import ResultReader
from serving.backends.child.supervisor import ChildSupervisor, ModelChild
from serving.backends.environments.interpreter import Interpreter
from serving.core.batch import Batch
from serving.core.devices import Device
from serving.core.errors import ProcessDied, ServingError, unexpected
from serving.core.log_context import about

log = logging.getLogger(__name__)

SLOTS = 4  # the most batches that the child has, so that neither the child nor the loop waits for the other
LOOP_BYTES = 1 << 20  # the most bytes that the loop copies, which takes about 0.1 ms
_CLOSED_GRACE_S = 1.0  # a process that has closed its connection is killed after this time
_LET_GO_S = 10.0  # the longest wait for the loop to detach the child

Done = Callable[[Batch], None]

SentBatch = tuple[Batch, Done, int, int]
"""A batch that the child has, the function to call when it is done, the key of its first request, the segment of its inputs."""


class ChildInstance(AsyncInstance):
    """A model instance in a separate child process.

    If the child ends, the batch that it executes fails, and the next child gets the other batches.
    """

    def __init__(
        self,
        spec: ModelSpec,
        device: Device,
        name: str,
        initialize: Initialize,
        python: Interpreter,
        bounds: Bounds | None = None,
    ) -> None:
        """initialize: the child's first message. python: the interpreter of the child. bounds: time limits instead of the
        configured ones."""
        super().__init__(device)
        decoupled = spec.config.model_transaction_policy.decoupled
        self.slots = 1 if decoupled else SLOTS
        self._name = name
        self._model = spec.name
        self._runtime = spec.require_runtime()
        self._loop = self._runtime.loop
        self._bounds = bounds = bounds or configured_bounds(spec.config)
        # The limit of a decoupled model applies to the time between two responses.
        self._bound_s = None if decoupled else bounds.execution_s
        self._timer: asyncio.TimerHandle | None = None
        self._encoder = RequestEncoder(spec.config, ResponsePace.limits if decoupled else None)
        self._results = ResultReader(spec)
        self._child: ModelChild | None = None  # the child that takes batches
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()  # tasks that wait until other threads have handled batches
        self._sent: deque[SentBatch] = deque()  # the batches that the child has; it executes the first one
        self._waiting: deque[tuple[Batch, Done]] = deque()  # the batches that wait for a child
        self._supervisor = ChildSupervisor(spec, name, initialize, python, self._adopt, self._refuse, bounds)

    def processes(self) -> list[int]:
        return self._supervisor.processes()

    def available(self) -> bool:
        return self._supervisor.available()

    def unready_reason(self) -> str:
        return self._supervisor.unready_reason()

    def down_s(self) -> float:
        return self._supervisor.down_s()

    def readiness(self) -> "Future[bool] | None":
        return self._supervisor.readiness()

    def close(self) -> None:
        let_go: Future[None] = Future()
        quietly(self._loop.call_soon_threadsafe, self._let_go, let_go)
        if self._loop.is_running():
            wait([let_go], _LET_GO_S)
        self._supervisor.close()

    # -- to the child ----------------------------------------------------------------------------------------------
    def begin(self, batch: Batch, done: Done) -> None:
        child = self._child
        if child is not None:
            self._send(child, batch, done)
            return
        refusal = self._supervisor.refusal()
        if refusal is not None:
            try:
                raise refusal
            finally:
                del refusal  # its traceback would keep this frame, and the batch, until garbage is collected
        self._waiting.append((batch, done))

    def _send(self, child: ModelChild, batch: Batch, done: Done) -> None:
        if self._encoder.may_take_long and self._encoder.takes_long(batch.requests):
            self._later(self._send_large(child, batch, done, None))
            return
        encoded = self._encoder.encode(batch.requests)
        writer = encoded.writer
        if writer.size > LOOP_BYTES:
            self._later(self._send_large(child, batch, done, encoded))
            return
        segment = child.inputs.acquire(writer.size or 1)
        writer.write(segment.memory)
        self._tell(child, batch, done, encoded, segment)

    async def _send_large(self, child: ModelChild, batch: Batch, done: Done, encoded: Encoded | None) -> None:
        """Let another thread write a batch's inputs. Then send the batch, to the next child if this one has ended."""
        in_thread = self._runtime.in_thread
        segment: Segment | None = None
        try:
            if encoded is None:
                encoded = await in_thread(self._encoder.encode, batch.requests)
            if child is self._child:
                segment = child.inputs.acquire(encoded.writer.size or 1)
                await in_thread(segment.fill, encoded.writer)
            if segment is not None and child is self._child:
                self._tell(child, batch, done, encoded, segment)
                return
        except Exception as error:
            if child is self._child:
                self._fail(batch, done, unexpected(error, "handing a batch to a model's process"))
                return
        if segment is not None and not segment.kept:
            segment.close()
        self._begin_or_fail(batch, done)

    def _tell(self, child: ModelChild, batch: Batch, done: Done, encoded: Encoded, segment: Segment) -> None:
        key = child.calls.requests.begin(batch)
        freed, dropped = child.take_freed(), child.inputs.take_dropped()
        message: Execute = segment.id, key, encoded.requests, encoded.parameters, freed, dropped
        batch.input_done()
        try:
            if segment.fresh:
                child.channel.send(message, [segment.descriptor])
                child.inputs.sent(segment)
            else:
                child.channel.send(message)
        except Closed:  # the child has ended, and the loop will notice soon
            child.calls.requests.failed(key)
            self._waiting.append((batch, done))
            return
        except ProtocolError as error:
            self._loop.call_soon(self._replace_broken, child, error)
        except Exception:  # the message cannot be encoded as JSON, so the child got nothing
            child.calls.requests.failed(key)
            child.inputs.release(segment.id)
            child.tell_again(message)
            raise
        self._sent.append((batch, done, key, segment.id))
        if self._bound_s is not None and self._timer is None:
            self._timer = self._loop.call_later(self._bound_s, self._check_bound)

    # -- from the child --------------------------------------------------------------------------------------------
    def _read_all(self, child: ModelChild) -> None:
        """Take at most SLOTS answers of the child, so that the loop can run other callbacks."""
        for _ in range(SLOTS):
            if not self._read(child) or not self._sent or self._child is not child:
                return

    def _read(self, child: ModelChild) -> bool:
        """Take the next answer. Return whether there was an answer."""
        try:
            answer, received = child.channel.receive()
        except BlockingIOError:
            return False
        except Closed:
            self._loop.remove_reader(child.channel.fileno())
            self._loop.call_later(_CLOSED_GRACE_S, child.give_up, "")
            return False
        except ProtocolError as error:
            self._replace_broken(child, error)
            return False
        try:
            if not self._sent:
                raise ProtocolError("it sent an answer without a batch")
            sent = self._sent[0]
            batch = sent[0]
            batch.infer_done()
            memory = self._results.open(child, answer, received)
            if self._results.takes_long(memory):
                self._later(self._read_large(child, answer, memory, sent))
                executed = None
            else:
                executed = self._results.read(answer, memory, batch)
        except (ProtocolError, *MALFORMED) as error:
            self._replace_broken(child, error)
            return False
        except Exception as error:
            batch.fail(unexpected(error, "reading the answer of a model's process"))
            executed = False
        finally:
            if received:
                close_all(received)
        self._sent.popleft()
        self._supervisor.succeeded()
        if self._sent:  # the child now executes the next batch
            following = self._sent[0][0]
            following.started_ns = following.input_done_ns = batch.infer_done_ns
        if executed is not None:
            self._done(child, sent, executed)
        return True

    async def _read_large(self, child: ModelChild, answer: object, memory: SharedMemory, sent: SentBatch) -> None:
        """Let another thread read the answer to a batch."""
        batch = sent[0]
        executed = False
        try:
            executed = await self._runtime.in_thread(self._results.read, answer, memory, batch)
        except (ProtocolError, *MALFORMED) as error:
            batch.fail(ProcessDied(self._loss(_broken(error))))
            self._replace_broken(child, error)
        except Exception as error:
            batch.fail(unexpected(error, "reading the answer of a model's process"))
        self._done(child, sent, executed)

    def _done(self, child: ModelChild, sent: SentBatch, executed: bool) -> None:
        """Finish a batch that has its responses."""
        batch, done, key, segment = sent
        if executed:
            child.calls.requests.executed(key)
        else:
            child.calls.requests.failed(key)
        child.inputs.release(segment)
        done(batch)

    def _later(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- the child's life ------------------------------------------------------------------------------------------
    def _adopt(self, child: ModelChild) -> None:
        """Send batches to this child from now on."""
        if self._closed:
            return
        self._child = child
        self._loop.add_reader(child.channel.fileno(), self._read_all, child)
        self._loop.add_reader(child.pidfd, self._replace_ended, child)
        waiting, self._waiting = self._waiting, deque()
        for batch, done in waiting:
            batch.started_ns = time.monotonic_ns()
            self._begin_or_fail(batch, done)

    def _begin_or_fail(self, batch: Batch, done: Done) -> None:
        try:
            self.begin(batch, done)
        except Exception as error:
            self._fail(batch, done, unexpected(error, "handing a batch to a model's process"))

    def _fail(self, batch: Batch, done: Done, error: ServingError) -> None:
        batch.fail(error)
        done(batch)

    def _replace_ended(self, child: ModelChild) -> None:
        """Take the last answers of a process that has ended, and start another one."""
        while self._child is child and self._read(child):
            pass
        if self._child is child:
            self._lose(child, child.wait_ended())

    def _replace_broken(self, child: ModelChild, error: Exception) -> None:
        if self._child is child:
            child.kill()
            self._lose(child, _broken(error))

    def _lose(self, child: ModelChild, how: str) -> None:
        if not self._sent:
            with about(self._model):
                log.warning("%s: %s between two requests", self._name, how)
        self._replace(child, self._loss(how))

    def _loss(self, how: str) -> str:
        return f"model '{self._model}': {how} during this request; it is being restarted"

    def _check_bound(self) -> None:
        """Kill the child if its batch takes too long."""
        self._timer = None
        child, bound_s = self._child, self._bound_s
        if child is None or bound_s is None or not self._sent:
            return
        left_s = bound_s - (time.monotonic_ns() - self._sent[0][0].started_ns) / 1e9
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._check_bound)
            return
        child.kill()
        self._replace(
            child,
            f"model '{self._model}': the batch took longer than {bound_s:g} s, which is its bound by "
            f"{self._bounds.execution_named}; its process is being restarted",
        )

    def _replace(self, child: ModelChild, reason: str) -> None:
        """Let the supervisor start another child. The batch that this child was executing fails with `reason`. The others
        wait."""
        self._detach(child)
        executing = self._sent.popleft() if self._sent else None
        self._waiting.extendleft((batch, done) for batch, done, _, _ in reversed(self._sent))
        self._sent.clear()
        self._supervisor.restart(child)
        refusal = self._supervisor.refusal()
        if refusal is not None:
            self._refuse(refusal)
        if executing is not None:
            batch, done, _, _ = executing
            self._fail(batch, done, ProcessDied(reason))

    def _refuse(self, reason: ServingError) -> None:
        """Fail the batches that wait for a child."""
        waiting, self._waiting = self._waiting, deque()
        for batch, done in waiting:
            self._fail(batch, done, reason)

    def _detach(self, child: ModelChild) -> None:
        self._child = None
        self._loop.remove_reader(child.channel.fileno())
        self._loop.remove_reader(child.pidfd)

    def _let_go(self, let_go: "Future[None]") -> None:
        """Detach the child, because the thread that closes the instance will end it."""
        self._closed = True
        if self._child is not None:
            self._detach(self._child)
        if self._timer is not None:
            self._timer.cancel()
        let_go.set_result(None)


def _broken(error: Exception) -> str:
    return f"the model's process was ended because it broke the protocol: {error}"

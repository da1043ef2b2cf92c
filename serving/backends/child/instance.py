"""A model instance in a child process: encodes batches into shared memory, decodes the answers, restarts what crashed.

What comes from the child is checked before use: it runs code of the model's author.
"""

import logging
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter
from repository.config.validation_parameters import EXECUTION_TIMEOUT
from serving.backends.base.backend import BackendInstance, ModelSpec
from serving.backends.channel.channel import ProtocolError, close_all
from serving.backends.channel.messages import TensorRow as Row
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.channel.shared_memory import KEEP_BYTES
from serving.backends.channel.tensors import TensorWriter, type_of
from serving.backends.child.calls import ChildCalls
from serving.backends.child.process import Calls, ChildProcess, ProcessDied
from serving.backends.child.tensors import COPY_BYTES, error_of, parameters_of, tensor, used_bytes
from serving.backends.child.watch import NOT_READY_AFTER_S, children
from serving.backends.environments.child_environment import Interpreter
from serving.core.batch import Batch
from serving.core.device_tensor import host_array
from serving.core.devices import Device
from serving.core.errors import ServingError, internal, invalid, unavailable
from serving.core.request import InferenceRequest, InferenceResponse
from serving.resources.runtime import HEARTBEAT_TIMEOUT_S

log = logging.getLogger(__name__)

FINALIZE_GRACE_S = 10.0
MAX_BACK_OFF_S = 60.0
LONGEST_WAIT_S = 2.0  # a request waits this long for a restart that is being held back, not longer


class ProcessInstance(BackendInstance):
    """`hello` is the child's first message; `python` the interpreter that it runs under."""

    def __init__(self, spec: ModelSpec, device: Device, name: str, hello: Message, python: Interpreter) -> None:
        super().__init__(device)
        self._spec = spec
        self._failure = (
            f"Failed to process the request(s) for model '{spec.name}', message: " if hello["stub"] == "python" else ""
        )
        self._iterative = spec.config.sequence_batching.iterative_sequence
        self._decoupled = spec.config.model_transaction_policy.decoupled
        bound_s = execution_timeout(spec.config)
        self._bound_s = None if self._decoupled else bound_s  # a stream is bounded by the time between its responses
        self._keeper = ProcessKeeper(
            name,
            hello,
            python,
            lambda child: ChildCalls(child, spec),
            HEARTBEAT_TIMEOUT_S if spec.runtime is None else spec.runtime.heartbeat_timeout_s,
            bound_s,
        )
        self._output_names = [output.name for output in spec.config.output]

    def execute(self, batch: Batch) -> None:
        with self._keeper.in_use:
            child = self._keeper.child()
            try:
                self._execute(child, batch)
            except ProcessDied as died:
                self._keeper.restart()
                raise internal(
                    f"model '{self._spec.name}': {died} during this request; it is being restarted"
                ) from None
            except TimeoutError:
                child.end(grace_s=0)
                self._keeper.restart()
                raise internal(
                    f"model '{self._spec.name}': the batch took longer than {self._bound_s:g} s, which is its bound by "
                    "slipway.execution_timeout_s; its process is being restarted"
                ) from None
            self._keeper.succeeded()

    def processes(self) -> list[int]:
        return self._keeper.processes()

    def close(self) -> None:
        self._keeper.close()

    def available(self) -> bool:
        return self._keeper.available()

    def complaint(self) -> str:
        return self._keeper.complaint()

    def readiness(self) -> "Future[bool] | None":
        return self._keeper.readiness()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _execute(self, child: ChildProcess, batch: Batch) -> None:
        message, writer = encode(batch.requests)
        segment = child.inputs.acquire(max(writer.size, 1))
        writer.write(segment.memory)
        message["segment"] = segment.id
        message["dropped"] = child.inputs.take_dropped()
        message["freed"] = [child.freed.popleft() for _ in range(len(child.freed))]
        batch.input_done()
        descriptors = [segment.descriptor] if segment.fresh else []
        keys = child.calls.begin(batch, message["requests"])
        answer, received = child.exchange(message, descriptors, self._bound_s)
        batch.infer_done()
        open_still = self._decoupled and answer.get("op") == "result"
        child.calls.executed([] if open_still else _answered(keys, answer))
        child.inputs.sent(segment)
        child.inputs.release(segment.id)
        try:
            self._decode(child, answer, received, batch)
        except (ProtocolError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise child.broke(ProtocolError(str(error))) from None
        finally:
            close_all(received)

    def _decode(self, child: ChildProcess, answer: Message, received: list[int], batch: Batch) -> None:
        if answer["op"] == "failed":
            raise error_of(self._failure, answer["code"], answer["message"])
        responses = answer["responses"]
        if self._decoupled and answer["op"] == "result" and responses == []:
            return
        if answer["op"] != "result" or len(responses) != len(batch.requests):
            raise ProtocolError(f"{len(batch.requests)} responses were expected")
        memory = _open(child, answer, received, responses)
        for index, (request, response) in enumerate(zip(batch.requests, responses, strict=True)):
            if response.get("again"):
                self._reschedule(batch, index)
                continue
            if response.get("later"):
                batch.later.add(request)
                continue
            if self._decoupled:
                continue
            batch.responses[index] = self._response(request, response, memory)

    def _reschedule(self, batch: Batch, index: int) -> None:
        if self._iterative:
            batch.rescheduled.add(batch.requests[index])
        else:
            batch.responses[index] = invalid(
                f"model '{self._spec.name}' asked for a request again, which needs sequence_batching with "
                "iterative_sequence: true"
            )

    def _response(self, request: InferenceRequest, response: Message, memory: Any) -> InferenceResponse | ServingError:
        if "error" in response:
            return error_of("", *response["error"])
        found = {row[0]: row for row in response["outputs"]}
        wanted = [name for name in self._output_names if not request.requested or name in request.requested]
        outputs = {name: tensor(found[name], memory) for name in wanted if name in found}
        return InferenceResponse(self._spec.name, self._spec.version, request.id, outputs, parameters_of(response))


class ProcessKeeper:
    """Keeps one child alive: starts it again when it has died, at once the first time, then ever later.

    The instance's thread holds `in_use` while it works with the child; the watch takes care of what happens between batches.
    """

    def __init__(
        self,
        name: str,
        hello: Message,
        python: Interpreter,
        calls: Callable[[ChildProcess], Calls],
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
        stream_bound_s: float | None = None,
    ) -> None:
        self.in_use = threading.Lock()
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._not_ready_after_s = min(NOT_READY_AFTER_S, heartbeat_timeout_s / 2)
        self._stream_bound_s = stream_bound_s
        self._name = name
        self._calls = calls
        self._hello = hello
        self._python = python
        self._deaths = 0
        self._due = 0.0
        self._closing = threading.Event()
        self._child: ChildProcess | None = None
        self._error: ServingError | None = None
        self._starter: threading.Thread | None = None
        self._asks = False  # whether the model has is_ready
        children.add(self)
        try:
            with self.in_use:
                self._start()
        except BaseException:
            children.remove(self)
            raise

    def child(self) -> ChildProcess:
        """The living child. Waits for one that is starting; UNAVAILABLE while a restart is held back or has failed."""
        if self._starter is None:
            assert self._child is not None
            if self._child.alive():
                return self._child
            log.warning("%s: %s between two requests", self._name, self._child.end())
            self.restart()
        assert self._starter is not None
        wait = self._due - time.monotonic()
        if wait > LONGEST_WAIT_S:
            raise unavailable(f"{self._name}: {self._held_back(wait)}")
        self._starter.join()
        self._starter = None
        if self._error is None:
            assert self._child is not None
            return self._child
        error = self._error
        self.restart()
        raise unavailable(f"{self._name}: the model's process could not be restarted: {error.message}")

    def processes(self) -> list[int]:
        child = self._child
        return [] if child is None else [child.pid]

    def restart(self) -> None:
        """Start again in the background, so that the next batch finds it ready or waits as briefly as possible."""
        self._child = None
        delay = 0.0 if self._deaths == 0 else min(2.0 ** (self._deaths - 1), MAX_BACK_OFF_S)
        self._deaths += 1
        self._due = time.monotonic() + delay
        log.warning("%s: the process is restarted in %g s (%d in a row)", self._name, delay, self._deaths)
        self._starter = threading.Thread(target=self._restart, args=(delay,), name=f"{self._name}-restart", daemon=True)
        self._starter.start()

    def available(self) -> bool:
        """False while its child is silent, or a start is held back for longer than a request would wait. Any thread may ask."""
        child = self._child
        if child is not None and child.silent_s > self._not_ready_after_s:
            return False
        return self._starter is None or self._due - time.monotonic() <= LONGEST_WAIT_S

    def complaint(self) -> str:
        """Why it would not answer at once; "" where it would. Any thread may ask."""
        child = self._child
        if child is not None and child.silent_s > self._not_ready_after_s:
            return f"its process has given no sign of life for {child.silent_s:.0f} s"
        if self._starter is None:
            return ""
        wait = self._due - time.monotonic()
        return self._held_back(wait) if wait > LONGEST_WAIT_S else "its process is being started again"

    def look(self, elapsed_s: float) -> None:
        """On the watch's thread: end a child that hangs; between two batches also start one that has ended."""
        child = self._child
        if child is not None:
            silent_s = child.listen(elapsed_s)
            if silent_s > self._not_ready_after_s:
                child.calls.readiness.unheard()
            if silent_s >= self._heartbeat_timeout_s:
                child.give_up(f"the model's process gave no sign of life for {silent_s:.0f} s and was ended")
            elif self._stream_bound_s is not None and child.calls.overdue(self._stream_bound_s):
                child.give_up(f"the model's process gave no response for {self._stream_bound_s:g} s and was ended")
        if self.in_use.acquire(blocking=False):
            try:
                self._revive()
            finally:
                self.in_use.release()

    def readiness(self) -> "Future[bool] | None":
        """What the model says of itself, where it does: not ready while its process is being restarted. Any thread."""
        child = self._child
        if not self._asks:
            return None
        if child is not None and self._starter is None:
            return child.calls.readiness.ask()
        answer: Future[bool] = Future()
        answer.set_result(False)
        return answer

    def succeeded(self) -> None:
        self._deaths = 0

    def close(self) -> None:
        """Finalize within the grace; a start that is under way is broken off."""
        self._closing.set()
        with self.in_use:
            if self._starter is not None:
                child = self._child
                if child is not None:
                    child.end(grace_s=0)
                self._starter.join()
            elif self._child is not None:
                self._child.calls.wait_for_streams()
                self._child.finalize(FINALIZE_GRACE_S)
            self._child = None
        children.remove(self)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _held_back(self, wait_s: float) -> str:
        reason = f" ({self._error.message})" if self._error is not None else ""
        return f"the model's process keeps ending{reason}; the next start is in {wait_s:.0f} s"

    def _revive(self) -> None:
        """A request is not needed for that: a model that is not ready may get none."""
        if self._closing.is_set():
            return
        if self._starter is None:
            if self._child is not None and not self._child.alive():
                log.warning("%s: %s between two requests", self._name, self._child.end())
                self.restart()
        elif not self._starter.is_alive():
            self._starter = None
            if self._error is not None:
                self.restart()

    def _restart(self, delay: float) -> None:
        error: ServingError | None = None
        try:
            if not self._closing.wait(delay):
                self._start()
        except ServingError as failure:
            error = failure
        self._error = error
        if self._closing.is_set() and self._child is not None:
            self._child.end(grace_s=0)

    def _start(self) -> None:
        """Spawn and initialize; raises ServingError with the whole reason."""
        self._child = child = ChildProcess(self._name, self._python, self._calls)
        try:
            answer, received = child.exchange(self._hello)
            close_all(received)
            if answer.get("op") == "ready":
                self._asks = answer.get("has_is_ready") is True
                return
            error = error_of("", answer.get("code"), answer.get("message"))
        except ProcessDied as died:
            error = internal(f"{died} before it was ready: {child.last_words()}".removesuffix(": "))
        child.end()
        raise error


def execution_timeout(config: ModelConfig) -> float | None:
    """Seconds that a batch may take; None without a bound. The configuration has been validated."""
    value = get_parameter(config, EXECUTION_TIMEOUT)
    return None if value is None else float(value)


# -- requests ----------------------------------------------------------------------------------------------------------
def encode(requests: list[InferenceRequest]) -> tuple[Message, TensorWriter]:
    """The `execute` message and the inputs to write. Tensors of one input lie side by side, in the requests' order."""
    writer = TensorWriter()
    rows: list[list[Row]] = [[] for _ in requests]
    for name in dict.fromkeys(name for request in requests for name in request.inputs):
        first = True
        for request, mine in zip(requests, rows, strict=True):
            if name in request.inputs:
                array = host_array(request.inputs[name])
                mine.append(writer.add(name, type_of(array).name, array, align=first))
                first = False
    described = [_describe(request, mine) for request, mine in zip(requests, rows, strict=True)]
    return {"op": "execute", "requests": described}, writer


def _describe(request: InferenceRequest, rows: list[Row]) -> Message:
    message: Message = {"id": request.id, "inputs": rows, "batch_size": request.batch_size}
    if request.requested:
        message["requested"] = request.requested
    if request.parameters:
        message["parameters"] = request.parameters
    if request.priority:
        message["priority"] = request.priority
    if request.timeout_us:
        message["timeout"] = request.timeout_us
    if request.sequence_id:
        message["sequence"] = request.sequence_id
        message["flags"] = request.sequence_start + 2 * request.sequence_end
    if request.observers:
        message["trace"] = next(filter(None, (observer.context() for observer in request.observers)), "")
    return message


def _answered(keys: list[int], answer: Message) -> list[int]:
    """Those of a batch's requests that its end answers; a response sender answers the others later."""
    responses = answer.get("responses")
    if not isinstance(responses, list) or len(responses) != len(keys):
        return keys
    later = [isinstance(response, dict) and bool(response.get("later")) for response in responses]
    return [key for key, waits in zip(keys, later, strict=True) if not waits]


# -- answers -----------------------------------------------------------------------------------------------------------
def _open(child: ChildProcess, answer: Message, received: list[int], responses: list[Message]) -> Any:
    """The memory that the answer's tensors lie in: a copy when it is small, else a view whose end frees the segment."""
    child.outputs.drop(answer["dropped"])
    identifier = answer["segment"]
    if not identifier:
        return b""
    mapped = child.outputs.open(identifier, received[0]) if received else child.outputs.get(identifier)
    used = used_bytes([row for one in responses for row in one.get("outputs", ())], mapped)
    if used <= COPY_BYTES:
        child.freed.append(identifier)
        return mapped[:used]
    view = np.frombuffer(mapped, np.uint8)
    if len(mapped) <= KEEP_BYTES:
        weakref.finalize(view, child.freed.append, identifier).atexit = False
    return view

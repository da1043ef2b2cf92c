"""A model instance in a child process: encodes batches into shared memory, decodes the answers, restarts what crashed.

What comes from the child is checked before use: it runs code of the model's author.
"""

import logging
import math
import threading
import time
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.backends.base import BackendInstance, ModelSpec
from serving.backends.child_process import ChildProcess, ProcessDied
from serving.backends.python_child.channel import Message, ProtocolError, close_all
from serving.backends.python_child.segments import KEEP_BYTES
from serving.backends.python_child.tensors import Row, Writer, type_of
from serving.batch import Batch
from serving.datatypes import DATATYPES, deserialize_bytes
from serving.devices import Device, host_array
from serving.errors import Code, ServingError, internal, unavailable
from serving.request import InferenceRequest, InferenceResponse

log = logging.getLogger(__name__)

FINALIZE_GRACE_S = 10.0
MAX_BACK_OFF_S = 60.0
LONGEST_WAIT_S = 2.0  # a request waits this long for a restart that is being held back, not longer
COPY_BYTES = 64 << 10  # outputs up to this size are copied out, so that their segment is free at once
_MAX_DIMS = 32
_MAX_TEXT = 16 << 10


class ProcessInstance(BackendInstance):
    """`hello` is the child's first message; `python` the interpreter that it runs under."""

    def __init__(self, spec: ModelSpec, device: Device, name: str, hello: Message, python: str) -> None:
        super().__init__(device)
        self._spec = spec
        self._failure = f"model '{spec.name}' failed: " if hello["servant"] == "python" else ""
        self._keeper = ProcessKeeper(name, hello, python)
        self._output_names = [output.name for output in spec.config.output]

    def execute(self, batch: Batch) -> None:
        child = self._keeper.child()
        try:
            self._execute(child, batch)
        except ProcessDied as died:
            self._keeper.restart()
            raise internal(f"model '{self._spec.name}': {died} during this request; it is being restarted") from None
        self._keeper.succeeded()

    def processes(self) -> list[int]:
        return self._keeper.processes()

    def close(self) -> None:
        self._keeper.close()

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

        def cancelled(question: Message) -> Message:
            index = question.get("request")
            if not isinstance(index, int) or not 0 <= index < len(batch.requests):
                raise ProtocolError(f"there is no request {index!r}")
            return {"op": "answer", "value": batch.requests[index].cancelled}

        answer, received = child.exchange(message, descriptors, {"cancelled": cancelled})
        batch.infer_done()
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
            raise _error(self._failure, answer["code"], answer["message"])
        responses = answer["responses"]
        if answer["op"] != "result" or len(responses) != len(batch.requests):
            raise ProtocolError(f"{len(batch.requests)} responses were expected")
        memory = _open(child, answer, received, responses)
        for index, (request, response) in enumerate(zip(batch.requests, responses, strict=True)):
            batch.responses[index] = self._response(request, response, memory)

    def _response(self, request: InferenceRequest, response: Message, memory: Any) -> InferenceResponse | ServingError:
        if "error" in response:
            return _error("", *response["error"])
        found = {row[0]: row for row in response["outputs"]}
        wanted = [name for name in self._output_names if not request.requested or name in request.requested]
        outputs = {name: _tensor(found[name], memory) for name in wanted if name in found}
        parameters = {str(key): _parameter(value) for key, value in response.get("parameters", {}).items()}
        return InferenceResponse(self._spec.name, self._spec.version, request.id, outputs, parameters)


class ProcessKeeper:
    """Keeps one child alive: starts it again when it has died, at once the first time, then ever later."""

    def __init__(self, name: str, hello: Message, python: str) -> None:
        self._name = name
        self._hello = hello
        self._python = python
        self._deaths = 0
        self._due = 0.0
        self._closing = threading.Event()
        self._child: ChildProcess | None = None
        self._error: ServingError | None = None
        self._starter: threading.Thread | None = None
        self._start()

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
            raise unavailable(f"{self._name}: the model's process keeps ending; the next start is in {wait:.0f} s")
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

    def succeeded(self) -> None:
        self._deaths = 0

    def close(self) -> None:
        """Finalize within the grace; a start that is under way is broken off."""
        self._closing.set()
        if self._starter is not None:
            child = self._child
            if child is not None:
                child.end(grace_s=0)
            self._starter.join()
        elif self._child is not None:
            self._child.finalize(FINALIZE_GRACE_S)
        self._child = None

    # -- inside ----------------------------------------------------------------------------------------------------
    def _restart(self, delay: float) -> None:
        self._error = None
        try:
            if not self._closing.wait(delay):
                self._start()
        except ServingError as error:
            self._error = error
        if self._closing.is_set() and self._child is not None:
            self._child.end(grace_s=0)

    def _start(self) -> None:
        """Spawn and initialize; raises ServingError with the whole reason."""
        self._child = child = ChildProcess(self._name, self._python)
        try:
            answer, received = child.exchange(self._hello)
            close_all(received)
            if answer.get("op") == "ready":
                return
            error = _error("", answer.get("code"), answer.get("message"))
        except ProcessDied as died:
            error = internal(f"{died} before it was ready: {child.last_words()}".removesuffix(": "))
        child.end()
        raise error


# -- requests ----------------------------------------------------------------------------------------------------------
def encode(requests: list[InferenceRequest]) -> tuple[Message, Writer]:
    """The `execute` message and the inputs to write. Tensors of one input lie side by side, in the requests' order."""
    writer = Writer()
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
    return message


# -- answers -----------------------------------------------------------------------------------------------------------
def _open(child: ChildProcess, answer: Message, received: list[int], responses: list[Message]) -> Any:
    """The memory that the answer's tensors lie in: a copy when it is small, else a view whose end frees the segment."""
    child.outputs.drop(answer["dropped"])
    identifier = answer["segment"]
    if not identifier:
        return b""
    mapped = child.outputs.open(identifier, received[0]) if received else child.outputs.get(identifier)
    used = max((row[3] + row[4] for one in responses for row in one.get("outputs", ())), default=0)
    if used > len(mapped):
        raise ProtocolError(f"the outputs end at byte {used} of a segment of {len(mapped)}")
    if used <= COPY_BYTES:
        child.freed.append(identifier)
        return mapped[:used]
    view = np.frombuffer(mapped, np.uint8)
    if len(mapped) <= KEEP_BYTES:
        weakref.finalize(view, child.freed.append, identifier).atexit = False
    return view


def _tensor(row: Row, memory: Any) -> NDArray[Any]:
    """The array that a row describes; ProtocolError unless it lies inside the memory and its size is that of its shape."""
    name, kind, shape, offset, length = row
    numbers = [*shape, offset, length]
    if len(numbers) > _MAX_DIMS + 2 or not all(type(number) is int and number >= 0 for number in numbers):
        raise ProtocolError(f"output '{name}' is badly described")
    if offset + length > len(memory):
        raise ProtocolError(f"output '{name}' lies outside its segment")
    datatype = DATATYPES[kind]
    count = math.prod(shape)
    if kind == "BYTES":
        try:
            return deserialize_bytes(memoryview(memory)[offset : offset + length], count).reshape(shape)
        except ServingError as error:
            raise ProtocolError(f"output '{name}': {error}") from None
    if count * datatype.itemsize != length:
        raise ProtocolError(f"output '{name}' has {length} bytes, not those of its shape")
    return np.ndarray(shape, datatype.dtype, memory, offset) if count else np.empty(shape, datatype.dtype)


def _error(prefix: str, code: Any, message: Any) -> ServingError:
    known = Code[code] if isinstance(code, str) and code in Code.__members__ else Code.INTERNAL
    return ServingError(known, prefix + str(message)[:_MAX_TEXT])


def _parameter(value: Any) -> str | int | float | bool:
    if isinstance(value, str | int | float | bool):
        return value
    raise ProtocolError(f"a response parameter must be a string, a number or a boolean, not {type(value).__name__}")

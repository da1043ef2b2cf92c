"""What a model's process asks of the server by itself, at any time: responses of decoupled models, inferences on other
models, loading them, metrics.

One thread reads; another, started when first needed, writes the answers, so that no child can hold up the event loop. Every
message is checked: a child that sends nonsense is ended.
"""

import asyncio
import mmap
import threading
from base64 import b64decode
from collections.abc import Callable, Coroutine
from itertools import count
from queue import SimpleQueue
from typing import Any

import numpy as np

from serving.backends.base import ModelSpec
from serving.backends.child_process import ChildProcess
from serving.backends.process_tensors import COPY_BYTES, error_of, parameters_of, tensor, used_bytes
from serving.backends.python_child.channel import ChannelError, Message, ProtocolError, close_all
from serving.backends.python_child.segments import map_sealed, send_tensors
from serving.backends.python_child.tensors import Row, Writer, type_of
from serving.batch import Batch, Send
from serving.custom_metrics import Series
from serving.device_tensor import host_array
from serving.errors import ServingError, internal, unavailable
from serving.request import InferenceRequest, InferenceResponse
from serving.runtime import Runtime

MAX_ASKED = 1000  # inferences on other models that one child may have under way
MAX_UNREAD = 10_000  # answers that wait for a child which does not read
MAX_METRICS = 1000

Answer = InferenceResponse | ServingError | Message | None


class ChildCalls:
    """Of one child. Its threads end when the child does; `join` waits for them."""

    def __init__(self, child: ChildProcess, spec: ModelSpec) -> None:
        self._child = child
        self._spec = spec
        self._failure = f"model '{spec.name}' failed: "
        self._outputs = [output.name for output in spec.config.output]
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._keys = count(1)
        self._streams: dict[int, tuple[InferenceRequest, Send]] = {}
        self._stream_ended = threading.Condition()
        self._running: Batch | None = None
        self._asked: dict[int, InferenceRequest] = {}
        self._metrics: dict[int, tuple[str, Series]] = {}
        self._outbox: SimpleQueue[tuple[int, Answer, bool] | None] = SimpleQueue()
        self._ended = False
        self._writer: threading.Thread | None = None
        self._handlers: dict[str, Callable[[Message, Any], None]] = {
            "response": self._response,
            "release": self._release,
            "cancelled": self._cancelled,
            "infer": self._infer,
            "cancel": self._cancel,
            "load": self._load,
            "unload": self._unload,
            "ready": self._ready,
            "metric_family": self._metric_family,
            "metric": self._metric,
            "metric_change": self._metric_change,
            "metric_value": self._metric_value,
        }
        self._reader = threading.Thread(target=self._read, name=f"{child.name}-calls", daemon=True)
        self._reader.start()

    # -- on the instance's thread ----------------------------------------------------------------------------------
    def begin(self, batch: Batch, requests: list[Message]) -> list[int]:
        """Give each request of a batch the key under which the child speaks of it."""
        keys = []
        for request, message in zip(batch.requests, requests, strict=True):
            message["key"] = key = next(self._keys)
            self._streams[key] = request, batch.send
            keys.append(key)
        self._running = batch
        return keys

    def executed(self, keys: list[int]) -> None:
        """The batch is over; the requests of these keys are answered."""
        self._running = None
        for key in keys:
            self._streams.pop(key, None)

    def wait_for_streams(self) -> None:
        """Until every open request of a decoupled model is answered, cancelled or lost with the process."""
        with self._stream_ended:
            while not self._ended and any(not request.finished for request, _ in list(self._streams.values())):
                self._stream_ended.wait(0.2)  # a cancelled request tells nobody

    def join(self) -> None:
        self._reader.join()
        if self._writer is not None:
            self._writer.join()

    # -- reading ---------------------------------------------------------------------------------------------------
    def _read(self) -> None:
        reason = ""
        try:
            while True:
                message, received = self._child.link.receive()
                try:
                    self._handle(message, received)
                finally:
                    close_all(received)
                del message
        except ProtocolError as error:
            reason = f"the model's process was ended because it broke the protocol: {error}"
            self._child.kill()
        except ChannelError:
            reason = self._child.wait_ended()
        finally:
            self._close(reason)

    def _handle(self, message: Message, received: list[int]) -> None:
        try:
            memory: Any = map_sealed(received[0], mmap.ACCESS_READ) if received else b""
            self._handlers[message["op"]](message, memory)
        except ServingError as error:
            self._answer(message, error)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProtocolError(str(error)) from None

    def _close(self, reason: str) -> None:
        self._ended = True
        streams, self._streams = list(self._streams.values()), {}
        error = internal(f"model '{self._spec.name}': {reason} before this request's final response")
        for request, send in streams if self._decoupled else ():  # else the batch's own end answers them
            _quietly(send, request, error, True)
        with self._stream_ended:
            self._stream_ended.notify_all()
        self._outbox.put(None)
        runtime = self._spec.runtime
        if runtime is not None:
            runtime.metrics.leave(self)
            for asked in list(self._asked.values()):
                _quietly(runtime.loop.call_soon_threadsafe, asked.cancel)

    # -- answers ---------------------------------------------------------------------------------------------------
    def _answer(self, question: Message, answer: Answer, final: bool = True) -> None:
        identifier = question.get("id")
        if not isinstance(identifier, int):
            raise ProtocolError("a question has no id")
        self._put(identifier, answer, final)

    def _put(self, identifier: int, answer: Answer, final: bool) -> None:
        """Any thread. A child that does not read is ended before its answers fill the memory."""
        if self._ended:
            return
        if self._outbox.qsize() > MAX_UNREAD:
            self._child.kill()
            return
        self._outbox.put((identifier, answer, final))
        if self._writer is None:
            with self._stream_ended:
                if self._writer is None:
                    self._writer = threading.Thread(target=self._write, name="child-answers", daemon=True)
                    self._writer.start()

    def _write(self) -> None:
        while (item := self._outbox.get()) is not None:
            identifier, answer, final = item
            writer = Writer()
            message = _encode(answer, writer) | {"id": identifier, "final": final}
            try:
                send_tensors(self._child.link, message, writer)
            except ChannelError:
                return
            del item, answer, writer  # or its tensors would stay until the next answer

    # -- responses of decoupled models -----------------------------------------------------------------------------
    def _response(self, message: Message, memory: Any) -> None:
        key, final = message["key"], message["final"]
        if not isinstance(key, int) or not isinstance(final, bool):
            raise ProtocolError("a response has no key")
        entry = self._streams.get(key)
        if entry is None:  # cancelled, failed or never there: nobody waits
            return
        request, send = entry
        response: InferenceResponse | ServingError | None = None
        if "error" in message:
            response = error_of("", *message["error"])
        elif "outputs" in message:
            found = _tensors(message["outputs"], memory)
            wanted = [name for name in self._outputs if not request.requested or name in request.requested]
            outputs = {name: found[name] for name in wanted if name in found}
            response = InferenceResponse(
                self._spec.name, self._spec.version, request.id, outputs, parameters_of(message)
            )
        elif not final:
            raise ProtocolError("a response is neither tensors, nor an error, nor the end")
        if final:
            with self._stream_ended:
                self._streams.pop(key, None)
                self._stream_ended.notify_all()
        send(request, response, final)

    def _release(self, message: Message, memory: Any) -> None:
        """The request comes again, under another key; its responses so far were read before this."""
        self._streams.pop(message["key"], None)

    def _cancelled(self, message: Message, memory: Any) -> None:
        entry = self._streams.get(message["key"])
        self._answer(message, {"value": entry is not None and entry[0].cancelled})

    # -- inferences on other models --------------------------------------------------------------------------------
    @property
    def _runtime(self) -> Runtime:
        if self._spec.runtime is None:
            raise unavailable("there is no server to ask")
        return self._spec.runtime

    def _infer(self, message: Message, memory: Any) -> None:
        runtime = self._runtime
        if len(self._asked) >= MAX_ASKED:
            raise unavailable(f"a model may have {MAX_ASKED} inferences on other models under way, not more")
        identifier = message["id"]
        request = _request(message, memory, lambda answer, final: self._inferred(identifier, answer, final))
        if not isinstance(identifier, int) or identifier in self._asked:
            raise ProtocolError("a question's id is not a new number")
        self._asked[identifier] = request
        batch = self._running
        parent = batch.requests[0] if batch is not None and len(batch.requests) == 1 else None
        _quietly(runtime.loop.call_soon_threadsafe, self._submit, runtime, identifier, request, parent)

    def _submit(
        self, runtime: Runtime, identifier: int, request: InferenceRequest, parent: InferenceRequest | None
    ) -> None:
        """On the loop's thread."""
        if self._ended:
            return
        try:
            runtime.infer(request)
        except ServingError as error:
            self._inferred(identifier, error, True)
        except Exception as error:
            self._inferred(identifier, internal(f"{type(error).__name__}: {error}"), True)
        else:
            if parent is not None:
                _cancel_together(parent, request)

    def _inferred(self, identifier: int, answer: "InferenceResponse | ServingError | None", final: bool) -> None:
        if final:
            self._asked.pop(identifier, None)
        self._put(identifier, answer, final)

    def _cancel(self, message: Message, memory: Any) -> None:
        request = self._asked.get(message["ask"])
        if request is not None:
            _quietly(self._runtime.loop.call_soon_threadsafe, request.cancel)

    # -- other models ----------------------------------------------------------------------------------------------
    def _load(self, message: Message, memory: Any) -> None:
        name, config, coded = message["model"], message["config"], message["files"]
        if not isinstance(name, str) or not isinstance(config, str):
            raise ProtocolError("a model's name and configuration must be text")
        files = {str(path): b64decode(content, validate=True) for path, content in coded.items()}
        self._control(message, lambda control: control.load_model(name, config, files or None))

    def _unload(self, message: Message, memory: Any) -> None:
        name, dependents = str(message["model"]), bool(message["dependents"])
        self._control(message, lambda control: control.unload_model(name, dependents))

    def _ready(self, message: Message, memory: Any) -> None:
        name, version = str(message["model"]), str(message["version"])

        async def ready(control: Any) -> bool:
            return bool(control.model_ready(name, version))

        self._control(message, ready)

    def _control(self, message: Message, action: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Run on the loop, answer when it is done."""
        runtime = self._runtime
        if runtime.control is None:
            raise unavailable("there is no server to ask")

        async def act() -> None:
            try:
                answer: Answer = {"value": await action(runtime.control)}
            except ServingError as error:
                answer = error
            except Exception as error:
                answer = internal(f"{type(error).__name__}: {error}")
            self._answer(message, answer)

        asyncio.run_coroutine_threadsafe(act(), runtime.loop)

    # -- metrics ---------------------------------------------------------------------------------------------------
    def _metric_family(self, message: Message, memory: Any) -> None:
        self._runtime.metrics.add_family(self, message["name"], message["description"], message["kind"])
        self._answer(message, {"value": None})

    def _metric(self, message: Message, memory: Any) -> None:
        number = message["number"]
        if not isinstance(number, int) or len(self._metrics) >= MAX_METRICS:
            raise unavailable(f"a model may have {MAX_METRICS} metrics, not more")
        found = self._runtime.metrics.add_series(self, message["family"], message["labels"], message["buckets"])
        self._metrics[number] = found
        self._answer(message, {"value": None})

    def _metric_change(self, message: Message, memory: Any) -> None:
        kind, series = self._metrics[message["number"]]
        self._runtime.metrics.change(kind, series, message["how"], message["value"])

    def _metric_value(self, message: Message, memory: Any) -> None:
        self._answer(message, {"value": self._metrics[message["number"]][1].value})


# -- messages ----------------------------------------------------------------------------------------------------------
def _request(message: Message, memory: Any, on_response: Callable[..., None]) -> InferenceRequest:
    texts = message["model"], message["version"], message["request_id"], *message["requested"]
    numbers = message["priority"], message["timeout"], message["flags"]
    sequence = message["sequence"]
    if not all(isinstance(text, str) for text in texts) or not all(type(n) is int and n >= 0 for n in numbers):
        raise ProtocolError("an inference on another model is badly described")
    if not isinstance(sequence, str) and (type(sequence) is not int or sequence < 0):
        raise ProtocolError("a correlation id must be a number or a text")
    return InferenceRequest(
        model_name=message["model"],
        model_version=message["version"],
        inputs=_tensors(message["inputs"], memory),
        on_response=on_response,
        id=message["request_id"],
        requested=tuple(message["requested"]),
        parameters=parameters_of(message),
        priority=message["priority"],
        timeout_us=message["timeout"],
        sequence_id=sequence,
        sequence_start=bool(message["flags"] & 1),
        sequence_end=bool(message["flags"] & 2),
    )


def _tensors(rows: list[Row], memory: Any) -> dict[str, Any]:
    """Small ones copied; large ones as views, whose end frees the segment."""
    used = used_bytes(rows, memory)
    held = memory[:used] if used <= COPY_BYTES else np.frombuffer(memory, np.uint8)
    return {row[0]: tensor(row, held) for row in rows}


def _encode(answer: Answer, writer: Writer) -> Message:
    if answer is None:
        return {}
    if isinstance(answer, ServingError):
        return {"error": [answer.code.value, answer.message]}
    if isinstance(answer, dict):
        return answer
    rows = []
    for name, value in answer.outputs.items():
        array = host_array(value)
        rows.append(writer.add(name, type_of(array).name, array))
    return {"outputs": rows, "parameters": answer.parameters}


def _cancel_together(parent: InferenceRequest, child: InferenceRequest) -> None:
    """Cancel an inference that a model makes while it answers `parent` alone when that is cancelled."""
    if parent.cancelled:
        child.cancel()
        return
    before = parent.on_cancel

    def cancel_both(request: InferenceRequest) -> None:
        if before is not None:
            before(request)
        child.cancel()

    if not parent.finished:
        parent.on_cancel = cancel_both


def _quietly(call: Callable[..., object], *arguments: object) -> None:
    """A call to a loop that may be closed: the server has ended meanwhile."""
    try:
        call(*arguments)
    except RuntimeError:
        pass

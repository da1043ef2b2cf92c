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
from functools import partial
from itertools import count
from queue import SimpleQueue
from typing import Any

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import ChannelError, ProtocolError, close_all
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.channel.shared_memory import map_sealed, send_tensors
from serving.backends.channel.tensors import TensorWriter
from serving.backends.child.inferences import ChildInferences
from serving.backends.child.messages import Answer, encode_answer, quietly, tensors_of
from serving.backends.child.metrics import ChildMetrics
from serving.backends.child.pacing import ChildPace, OpenStream
from serving.backends.child.process import ChildProcess
from serving.backends.child.readiness import ChildReadiness
from serving.backends.child.tensors import error_of, parameters_of
from serving.core.batch import Batch
from serving.core.errors import ServingError, internal, unavailable, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from serving.core.response_flow import OVERHEAD
from serving.resources.runtime import Runtime

MAX_UNREAD = 10_000  # answers that wait for a child which does not read


class ChildCalls:
    """Of one child. Its threads end when the child does; `join` waits for them. `readiness` asks the model itself."""

    def __init__(self, child: ChildProcess, spec: ModelSpec) -> None:
        self._child = child
        self._spec = spec
        self._failure = f"Failed to process the request(s) for model '{spec.name}', message: "
        self._outputs = [output.name for output in spec.config.output]
        self._decoupled = spec.config.model_transaction_policy.decoupled
        self._keys = count(1)
        self._streams: dict[int, OpenStream] = {}
        self._stream_ended = threading.Condition()
        self._inferences = ChildInferences(self._put)
        self.readiness = ChildReadiness(child.name, lambda: self._put(0, {"op": "is_ready"}, True))
        self._metrics = ChildMetrics(self, self._answer)
        self._outbox: SimpleQueue[tuple[int, Answer, bool] | None] = SimpleQueue()
        self._running: set[int] = set()  # keys of the batch that executes
        self._ended = False
        self._reason = ""  # why it ended
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
            "is_ready": self._is_ready,
        }
        self._reader = threading.Thread(target=self._read, name=f"{child.name}-calls", daemon=True)
        self._reader.start()

    # -- on the instance's thread ----------------------------------------------------------------------------------
    def begin(self, batch: Batch, requests: list[Message]) -> list[int]:
        """Give each request of a batch the key under which the child speaks of it."""
        keys = []
        for request, message in zip(batch.requests, requests, strict=True):
            message["key"] = key = next(self._keys)
            self._streams[key] = stream = OpenStream(request, batch.send)
            if self._decoupled and request.responder.flow is not None:
                message["window"] = ChildPace.limits
                stream.pace(partial(self._tell_taken, key))
            keys.append(key)
        self._running = set(keys)
        return keys

    def _tell_taken(self, key: int, size: int) -> None:
        self._put(0, {"op": "taken", "key": key, "size": size}, True)

    def executed(self, keys: list[int]) -> None:
        """The batch is over; the requests of these keys are answered, the others open still."""
        for key in keys:
            self._forget(key)
        self._running = set()
        if self._ended:  # meanwhile
            self._fail_open()

    def wait_for_streams(self) -> None:
        """Until every open request of a decoupled model is answered, cancelled or lost with the process."""
        with self._stream_ended:
            while not self._ended and any(not one.request.finished for one in list(self._streams.values())):
                self._stream_ended.wait(0.2)  # a cancelled request tells nobody

    def overdue(self, bound_s: float) -> bool:
        """Whether a request that its batch's end does not answer has waited that long for its next response. Any thread."""
        running = set() if self._decoupled else self._running
        return any(key not in running and stream.overdue(bound_s) for key, stream in list(self._streams.items()))

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
            of_metrics = self._metrics.handlers.get(message["op"])
            if of_metrics is not None:
                of_metrics(self._runtime, message)
            else:
                self._handlers[message["op"]](message, memory)
        except ServingError as error:
            self._answer(message, error)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProtocolError(str(error)) from None
        except ChannelError:
            raise
        except Exception as error:  # the child waits for an answer, whatever it is
            self._answer(message, unexpected(error, "taking the call of a model"))

    def _close(self, reason: str) -> None:
        self._reason = reason
        self._ended = True
        self._fail_open()
        with self._stream_ended:
            self._stream_ended.notify_all()
        self._outbox.put(None)
        self.readiness.close()
        runtime = self._spec.runtime
        if runtime is not None:
            runtime.metrics.leave(self)
            self._inferences.close(runtime)

    def _fail_open(self) -> None:
        """Fail what is open for good; the end of the running batch answers what is not decoupled."""
        error = internal(f"model '{self._spec.name}': {self._reason} before this request's final response")
        for key in list(self._streams):
            if not self._decoupled and key in self._running:
                continue
            stream = self._forget(key)
            if stream is not None:
                quietly(stream.send, stream.request, error, True)

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
            writer = TensorWriter()
            try:
                message = encode_answer(answer, writer)
            except Exception as error:  # the child waits for an answer, whatever it is
                writer = TensorWriter()
                failure = unexpected(error, "handing over an answer")
                message = {"error": [failure.code.value, failure.message]}
            message |= {"id": identifier, "final": final}
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
        stream = self._streams.get(key)
        if stream is None:  # cancelled, failed or never there: nobody waits
            return
        request = stream.request
        response: InferenceResponse | ServingError | None = None
        if "error" in message:
            response = error_of("", *message["error"])
        elif "outputs" in message:
            found = tensors_of(message["outputs"], memory)
            wanted = [
                name for name in self._outputs if not request.requested_outputs or name in request.requested_outputs
            ]
            outputs = {name: found[name] for name in wanted if name in found}
            response = InferenceResponse(
                self._spec.name, self._spec.version, request.asked.id, outputs, parameters_of(message)
            )
            response.size = stream.sent(OVERHEAD + sum(row[4] for row in message["outputs"]))
        elif not final:
            raise ProtocolError("a response is neither tensors, nor an error, nor the end")
        if final:
            with self._stream_ended:
                self._forget(key)
                self._stream_ended.notify_all()
        stream.send(request, response, final)

    def _release(self, message: Message, memory: Any) -> None:
        """The request comes again, under another key; its responses so far were read before this."""
        self._forget(message["key"])

    def _forget(self, key: int) -> OpenStream | None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            stream.close()
        return stream

    def _cancelled(self, message: Message, memory: Any) -> None:
        stream = self._streams.get(message["key"])
        self._answer(message, {"value": stream is not None and stream.request.cancelled})

    # -- inferences on other models --------------------------------------------------------------------------------
    @property
    def _runtime(self) -> Runtime:
        if self._spec.runtime is None:
            raise unavailable("there is no server to ask")
        return self._spec.runtime

    def _infer(self, message: Message, memory: Any) -> None:
        traced = self._streams.get(message["trace"])
        self._inferences.ask(
            self._runtime, message, memory, self._made_for(message["made_for"]), traced.request if traced else None
        )

    def _made_for(self, keys: list[int] | None) -> list[InFlightRequest]:
        """The requests that an inference is made for: all that are open where the model's thread does not know. Empty where
        one of them is answered already: then it is not for the answer."""
        if keys is None:
            return [stream.request for stream in list(self._streams.values())]
        found = [self._streams.get(key) for key in keys]
        return [] if None in found else [stream.request for stream in found if stream is not None]

    def _cancel(self, message: Message, memory: Any) -> None:
        self._inferences.cancel(self._runtime, message["ask"], message["waits"] is True)

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

        self._control(message, lambda control: control.confirm_model_ready(name, version))

    def _is_ready(self, message: Message, memory: Any) -> None:
        """The answer to this server's own question."""
        self.readiness.answered(message)

    def _control(self, message: Message, action: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        """Run on the loop, answer when it is done."""
        runtime = self._runtime
        if runtime.control is None:
            raise unavailable("there is no server to ask")

        async def act() -> None:
            try:
                answer: Answer = {"value": await action(runtime.control)}
            except Exception as error:
                answer = unexpected(error, "serving the call of a model")
            self._answer(message, answer)

        asyncio.run_coroutine_threadsafe(act(), runtime.loop)

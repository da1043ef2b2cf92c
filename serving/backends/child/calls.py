"""Serves the link between the server and one child: takes the child's messages, and sends the server's messages.

    OpenRequests        responses of decoupled models, and responses after their batch
    RequestExecutor     inferences on other models
    ChildModelControl   requests to load, unload and check other models
    ChildMetrics        custom metrics
    ChildReadiness      answers to the server's question whether the model is ready

One thread reads. A second thread, which starts when it is first needed, writes, so that no child can block the event loop.
Every message is checked. A child that sends a malformed message is killed.
"""

import mmap
import threading
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import NamedTuple

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import Channel, ChannelError, ProtocolError, close_all
from serving.backends.channel.messages import IsReady, Message, Received, Taken
from serving.backends.channel.shared_memory import map_sealed, send_tensors
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.backends.child.codec import MALFORMED, Answer, Handler, encode_answer
from serving.backends.child.metrics import ChildMetrics
from serving.backends.child.model_control import ChildModelControl
from serving.backends.child.open_requests import OpenRequests
from serving.backends.child.process import ChildProcess
from serving.backends.child.readiness import ChildReadiness
from serving.backends.child.request_executor import RequestExecutor
from serving.core.errors import ServingError, unexpected

MAX_UNREAD = 10_000  # the most messages that wait for a child that does not read


class ChildCalls:
    """Serves the link of one child. Its threads end with the child. `join` waits for the threads."""

    def __init__(self, child: ChildProcess, spec: ModelSpec) -> None:
        self._child = child
        self._outbox = Outbox(child.link, child.kill)
        self.requests = OpenRequests(spec, self._outbox.put)
        self.readiness = ChildReadiness(child.name, self._outbox.put)
        self._executor = RequestExecutor(spec, self.requests, self._answer)
        self._metrics = ChildMetrics(spec)
        self._handlers: dict[str, Handler] = {
            **self.requests.handlers,
            **self.readiness.handlers,
            **self._executor.handlers,
            **self._metrics.handlers,
            **ChildModelControl(spec, self._answer).handlers,
        }
        run = copy_context().run  # the thread's log lines are marked with the model
        self._reader = threading.Thread(target=run, args=(self._read,), name=f"{child.name}-calls", daemon=True)
        self._reader.start()

    def join(self) -> None:
        """Wait for the threads, which end with the child."""
        self._reader.join()
        self._outbox.join()

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
            self.requests.close(reason)
            self._outbox.close()
            self.readiness.close()
            self._metrics.close()
            self._executor.close()

    def _handle(self, message: Received, received: list[int]) -> None:
        answer: Answer
        try:
            memory: Memory = map_sealed(received[0], mmap.ACCESS_READ) if received else b""
            answer = self._handlers[str(message["op"])](message, memory)
        except ServingError as error:
            answer = error
        except MALFORMED as error:
            raise ProtocolError(str(error)) from None
        except ChannelError:
            raise
        except Exception as error:  # the child waits for an answer
            answer = unexpected(error, "taking the call of a model")
        if answer is not None:
            identifier = message.get("id")
            if not isinstance(identifier, int):
                raise ProtocolError("a question has no id")
            self._answer(identifier, answer, True)

    def _answer(self, identifier: int, answer: Answer, final: bool) -> None:
        """Send the child an answer to its question with this id. Callable on any thread."""
        self._outbox.put(_Reply(identifier, answer, final))


class _Reply(NamedTuple):
    """An answer to the child's question `identifier`. final: it is the last answer."""

    identifier: int
    answer: Answer
    final: bool

    def encode(self) -> tuple[Message, TensorWriter]:
        writer = TensorWriter()
        try:
            body = encode_answer(self.answer, writer)
        except Exception as error:  # the child waits for an answer
            writer = TensorWriter()
            failure = unexpected(error, "handing over an answer")
            body = {"error": (failure.code.value, failure.message)}
        return {**body, "id": self.identifier, "final": self.final}, writer


class Outbox:
    """The messages that wait to be written to a child's link. `kill` ends a child that leaves too many messages unread."""

    def __init__(self, link: Channel, kill: Callable[[], None]) -> None:
        self._link = link
        self._kill = kill
        self._queue: SimpleQueue[_Reply | IsReady | Taken | None] = SimpleQueue()
        self._ended = False
        self._starting = threading.Lock()
        self._writer: threading.Thread | None = None

    def put(self, message: _Reply | IsReady | Taken) -> None:
        """Queue a message. Callable on any thread."""
        if self._ended:
            return
        if self._queue.qsize() > MAX_UNREAD:
            self._kill()
            return
        self._queue.put(message)
        if self._writer is None:
            with self._starting:
                if self._writer is None:
                    self._writer = threading.Thread(target=self._write, name="child-answers", daemon=True)
                    self._writer.start()

    def close(self) -> None:
        """Stop writing, because the child has ended."""
        self._ended = True
        self._queue.put(None)

    def join(self) -> None:
        if self._writer is not None:
            self._writer.join()

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if isinstance(item, _Reply):
                    message, writer = item.encode()
                    send_tensors(self._link, message, writer)
                    del message, writer  # frees the tensors while the thread waits for the next answer
                else:
                    self._link.send(item)
            except ChannelError:
                return
            del item

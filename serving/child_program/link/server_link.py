"""The child's link to the server, for streamed responses and for questions from any thread. Batches have another channel.

A message may have tensors in a segment that is used once. A question has an `id`. The answers to a question have its `id`, and
the last answer has `final`. A message with an `op` does not answer a question. serving/backends/channel/messages.py lists all
messages.
"""

import itertools
import mmap
import os
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple, cast

from serving.backends.channel.channel import Channel, ChannelError, close_all
from serving.backends.channel.messages import Answer, IsReady, Message, Taken
from serving.backends.channel.shared_memory import map_sealed, send_tensors
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.link.errors import ErrorCode, TritonModelException


class ReceivedAnswer(NamedTuple):
    """An answer, and the memory of its tensors."""

    message: Answer
    memory: Memory


OnAnswer = Callable[[ReceivedAnswer], None]


class ServerLink:
    """The connection to the server. The connection is opened at its first use, because most models never use it.

    `on_message` takes messages that are no answers, on a thread of the link. It must not block.
    """

    def __init__(self, end: socket.socket, on_message: Callable[[IsReady | Taken], None]) -> None:
        self._end = end
        self._on_message = on_message
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._forked = False  # True in a fork of the process, which must not use the connection
        os.register_at_fork(after_in_child=self._after_fork)
        self._ids = itertools.count(1)
        self._waiting: dict[int, OnAnswer] = {}
        self._later: SimpleQueue[Message] = SimpleQueue()

    def connect(self) -> None:
        """Connect now instead of with the first message, so that the server can send messages first."""
        with self._lock:
            self._connected()

    def tell(self, message: Message, writer: TensorWriter | None = None) -> None:
        """Send a message that needs no answer. Callable on any thread."""
        with self._lock:
            channel = self._connected()
            send_tensors(channel, message, writer)

    def start(self, message: Message, on_answer: OnAnswer, writer: TensorWriter | None = None) -> int:
        """Send a question, and return its id. `on_answer` takes the answers on the link's thread."""
        identifier = next(self._ids)
        self._waiting[identifier] = on_answer
        try:
            self.tell({**message, "id": identifier}, writer)
        except BaseException:
            del self._waiting[identifier]
            raise
        return identifier

    def ask(self, message: Message) -> object:
        """Send a question, wait, and return the value of its answer. Raises TritonModelException if the server refuses."""
        answers: SimpleQueue[ReceivedAnswer] = SimpleQueue()
        self.start(message, answers.put)
        answer = answers.get().message
        if "error" in answer:
            raise TritonModelException(answer["error"][1])
        return answer.get("value")

    def tell_later(self, message: Message) -> None:
        """Let a thread send a message that needs no answer. For calls by the garbage collector, which must not wait."""
        self._later.put(message)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _connected(self) -> Channel:
        if self._forked:
            raise TritonModelException("only the model's own process can ask the server, not one that it has forked")
        if self._channel is None:
            self._channel = Channel(self._end)
            threading.Thread(target=self._read, args=(self._channel,), name="server-link", daemon=True).start()
            threading.Thread(target=self._send_later, name="server-link-later", daemon=True).start()
        return self._channel

    def _after_fork(self) -> None:
        self._forked = True
        self._lock = threading.Lock()  # another thread may have held the lock at the fork

    def _read(self, channel: Channel) -> None:
        try:
            while True:
                received, descriptors = channel.receive()
                memory: Memory = map_sealed(descriptors[0], mmap.ACCESS_COPY) if descriptors else b""
                close_all(descriptors)
                if "op" in received:
                    self._on_message(cast("IsReady | Taken", received))
                    continue
                message = cast("Answer", received)
                on_answer = self._waiting.get(message["id"])
                if message["final"]:
                    self._waiting.pop(message["id"], None)
                if on_answer is not None:
                    on_answer(ReceivedAnswer(message, memory))
        except ChannelError:  # the server has ended, or has closed the link
            waiting, self._waiting = self._waiting, {}
            error = (ErrorCode.UNAVAILABLE.value, "the server does not answer any more")
            for identifier, on_answer in waiting.items():
                on_answer(ReceivedAnswer({"id": identifier, "error": error, "final": True}, b""))

    def _send_later(self) -> None:
        while True:
            message = self._later.get()
            try:
                self.tell(message)
            except ChannelError:
                return

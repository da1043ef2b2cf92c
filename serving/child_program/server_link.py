"""The child's own way to the server, beside the batches: streamed responses and questions, from any thread, at any time.

A message that goes out may bring tensors in a segment that is used once. A question has an `id`; its answers come back with
it, the last one with `final`. A message with an `op` is a question of the server's. The package's docstring lists all.
"""

import itertools
import mmap
import os
import socket
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple

from serving.backends.channel.channel import Channel, ChannelError, Message, close_all
from serving.backends.channel.segments import map_sealed, send_tensors
from serving.backends.channel.tensors import Writer
from serving.child_program.pb_utils.errors import ErrorCode, TritonModelException


class Answer(NamedTuple):
    message: Message
    memory: Any  # what its tensors lie in


OnAnswer = Callable[[Answer], None]


class ServerLink:
    """Connects when it is first used: most models never ask anything."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._channel: Channel | None = None
        self._lock = threading.Lock()
        self._forked = False  # this is a copy of the process, which must not speak on its connection
        os.register_at_fork(after_in_child=self._after_fork)
        self._ids = itertools.count(1)
        self._waiting: dict[int, OnAnswer] = {}
        self._later: SimpleQueue[Message] = SimpleQueue()
        self.on_question: Callable[[Message], None] = lambda question: None  # what the server asks; must not block

    def connect(self) -> None:
        """Now, in place of with the first message: what is told later is told by a thread of this link."""
        with self._lock:
            self._connected()

    def tell(self, message: Message, writer: Writer | None = None) -> None:
        """Send what needs no answer."""
        with self._lock:
            channel = self._connected()
            send_tensors(channel, message, writer)

    def start(self, message: Message, on_answer: OnAnswer, writer: Writer | None = None) -> int:
        """Send a question; its answers are handed over on the link's thread."""
        identifier = next(self._ids)
        self._waiting[identifier] = on_answer
        try:
            self.tell(message | {"id": identifier}, writer)
        except BaseException:
            del self._waiting[identifier]
            raise
        return identifier

    def ask(self, message: Message) -> Any:
        """Send a question, wait, and return the value of its answer; TritonModelException where the server refuses."""
        answers: SimpleQueue[Answer] = SimpleQueue()
        self.start(message, answers.put)
        answer = answers.get().message
        if "error" in answer:
            raise TritonModelException(answer["error"][1])
        return answer.get("value")

    def tell_later(self, message: Message) -> None:
        """What needs no answer and may not wait here: the garbage collector calls."""
        self._later.put(message)

    # -- inside ----------------------------------------------------------------------------------------------------
    def _connected(self) -> Channel:
        if self._forked:
            raise TritonModelException("only the model's own process can ask the server, not one that it has forked")
        if self._channel is None:
            self._channel = Channel(self._end)
            threading.Thread(target=self._read, args=(self._channel,), name="server-link", daemon=True).start()
            threading.Thread(target=self._tell_what_is_late, name="server-link-later", daemon=True).start()
        return self._channel

    def _after_fork(self) -> None:
        self._forked = True
        self._lock = threading.Lock()  # another thread may have held it

    def _read(self, channel: Channel) -> None:
        try:
            while True:
                message, descriptors = channel.receive()
                memory: Any = map_sealed(descriptors[0], mmap.ACCESS_COPY) if descriptors else b""
                close_all(descriptors)
                if "op" in message:
                    self.on_question(message)
                    continue
                on_answer = self._waiting.get(message["id"])
                if message["final"]:
                    self._waiting.pop(message["id"], None)
                if on_answer is not None:
                    on_answer(Answer(message, memory))
        except ChannelError:  # the server has gone, or has had enough of this process
            waiting, self._waiting = self._waiting, {}
            gone = {"error": [ErrorCode.UNAVAILABLE.value, "the server does not answer any more"], "final": True}
            for on_answer in waiting.values():
                on_answer(Answer(gone, b""))

    def _tell_what_is_late(self) -> None:
        while True:
            message = self._later.get()
            try:
                self.tell(message)
            except ChannelError:
                return


current: ServerLink | None = None  # set by the servant


def server() -> ServerLink:
    """The link of this process; TritonModelException where there is none."""
    if current is None:
        raise TritonModelException("the server can be asked only by a model that it is serving")
    return current

"""The child's main loop: one servant, one message at a time, until the server says `finalize` or goes away."""

import importlib
import sys
import traceback
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from serving.backends.channel.channel import Channel, Closed, Message, close_all
from serving.backends.channel.segments import SegmentMap, SegmentPool
from serving.backends.channel.tensors import Writer
from serving.child_program.server_link import ServerLink
from serving.core.texts import without_paths


class Servant(ABC):
    """What answers the messages. Its errors go to the server by `describe` and `code`."""

    asks = False  # whether the model wants to be asked if it is ready

    @abstractmethod
    def __init__(self, message: Message, link: ServerLink) -> None:
        """Load the model, as the `initialize` message says."""

    @abstractmethod
    def execute(self, requests: list[Message], memory: Any, writer: Writer) -> list[Message]:
        """One answer for each request; their tensors go into `writer`."""

    def finalize(self) -> None:  # noqa: B027
        """Called once, before the process ends."""

    @staticmethod
    def complete_config(message: Message) -> Message | None:
        """The completed configuration, or None where the model completes nothing."""
        return None


SERVANTS: dict[str, str] = {
    "python": "serving.child_program.python_servant:PythonServant",
    "backend": "serving.child_program.backend_servant:BackendServant",
}


def serve(channel: Channel, link: ServerLink) -> None:
    message, _ = channel.receive()
    module, _, name = SERVANTS[message["servant"]].partition(":")
    try:
        servant_class: type[Servant] = getattr(importlib.import_module(module), name)
        if message["servant"] == "python":
            del sys.path[0]
        if message["op"] == "complete_config":
            channel.send({"op": "completed", "config": servant_class.complete_config(message)})
            return
        servant = servant_class(message, link)
    except BaseException as error:
        channel.send(failed(error, message.get("folder", "")))
        return
    channel.send({"op": "ready", "asks": servant.asks})
    try:
        _Executor(channel, servant, message.get("folder", "")).run()
    except Closed:
        return


class _Executor:
    def __init__(self, channel: Channel, servant: Servant, folder: str) -> None:
        self._channel = channel
        self._servant = servant
        self._folder = folder
        self._inputs = SegmentMap(writable=True)
        self._outputs = SegmentPool()

    def run(self) -> None:
        while True:
            message, descriptors = self._channel.receive()
            if message["op"] == "execute":
                self._execute(message, descriptors)
            else:
                self._finalize()
                return

    def _execute(self, message: Message, descriptors: list[int]) -> None:
        self._inputs.drop(message["dropped"])
        for identifier in message["freed"]:
            self._outputs.release(identifier)
        identifier = message["segment"]
        memory = self._inputs.open(identifier, descriptors[0]) if descriptors else self._inputs.get(identifier)
        close_all(descriptors)
        writer = Writer()
        try:
            responses = self._servant.execute(message["requests"], memory, writer)
        except Closed:
            raise
        except BaseException as error:
            self._channel.send(failed(error, self._folder))
        else:
            self._answer(responses, writer)

    def _answer(self, responses: list[Message], writer: Writer) -> None:
        result: Message = {"op": "result", "segment": 0, "responses": responses}
        if not writer.size:
            self._channel.send(result | {"dropped": []})
            return
        segment = self._outputs.acquire(writer.size)
        writer.write(segment.memory)
        result["segment"] = segment.id
        result["dropped"] = self._outputs.take_dropped()
        self._channel.send(result, [segment.descriptor] if segment.fresh else [])
        self._outputs.sent(segment)

    def _finalize(self) -> None:
        try:
            self._servant.finalize()
        except BaseException:
            traceback.print_exc()
        self._channel.send({"op": "finalized"})


# -- errors ------------------------------------------------------------------------------------------------------------
_SENTENCES = ("ServingError", "TritonModelException")  # whose text is meant for the client as it is


def failed(error: BaseException, folder: str) -> Message:
    """The message for the server; the traceback goes to the log."""
    traceback.print_exception(error)
    sys.stderr.flush()
    code = getattr(getattr(error, "code", None), "value", None)
    code = code if isinstance(code, str) else "INTERNAL"
    return {"op": "failed", "message": describe(error, folder), "code": code}


def describe(error: BaseException, folder: str) -> str:
    """The last line of the traceback and where in the model's folder it happened; no path of this machine."""
    text = str(error.msg if isinstance(error, SyntaxError) else error)
    if not any(base.__name__ in _SENTENCES for base in type(error).__mro__):
        text = without_paths(_clean(text, folder))
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
        place = _place(error, folder)
        text = f"{text} ({place})" if place else text
    return _clean(text, folder)


def _place(error: BaseException, folder: str) -> str:
    if not folder:
        return ""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_relative_to(folder):
        return f"{Path(error.filename).relative_to(folder)}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename).is_relative_to(folder):
            return f"{Path(frame.filename).relative_to(folder)}, line {frame.lineno}, in {frame.name}"
    return ""


def _clean(text: str, folder: str) -> str:
    """Without the model's own folder, and in valid UTF-8."""
    if folder:
        text = text.replace(f"{folder}/", "").replace(folder, ".")
    return text.encode("utf-8", "replace").decode()

"""Loads, unloads or checks other models for a model's process."""

import asyncio
from base64 import b64decode
from collections.abc import Callable, Coroutine, Mapping

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import Load, ModelReady, Unload
from serving.backends.channel.tensors import Memory
from serving.backends.child.codec import Answer, Handler
from serving.core.errors import unavailable, unexpected
from serving.resources.runtime import ModelControl


class ChildModelControl:
    """Serves one child. Its `handlers` are called on the thread that reads the child's link, and the loop does the work.

    answer: sends the child an answer. Parameters: the id of the question, the answer, and whether it is the last one.
    """

    def __init__(self, spec: ModelSpec, answer: Callable[[int, Answer, bool], None]) -> None:
        self._spec = spec
        self._answer = answer
        self.handlers: Mapping[str, Handler] = {"load": self._load, "unload": self._unload, "ready": self._ready}

    def _load(self, message: Load, memory: Memory) -> None:
        name, config, coded = message["model"], message["config"], message["files"]
        if not isinstance(name, str) or not isinstance(config, str):
            raise ProtocolError("a model's name and configuration must be text")
        files = {str(path): b64decode(content, validate=True) for path, content in coded.items()}

        async def load(control: ModelControl) -> None:
            await control.load_model(name, config, files or None)

        self._start(message["id"], load)

    def _unload(self, message: Unload, memory: Memory) -> None:
        name, dependents = str(message["model"]), bool(message["dependents"])
        self._start(message["id"], lambda control: control.unload_model(name, dependents))

    def _ready(self, message: ModelReady, memory: Memory) -> None:
        name, version = str(message["model"]), str(message["version"])
        self._start(message["id"], lambda control: control.confirm_model_ready(name, version))

    def _start(self, identifier: int, action: Callable[[ModelControl], Coroutine[object, None, bool | None]]) -> None:
        """Run an action on the loop, and answer when the action is done."""
        runtime = self._spec.require_runtime()
        control = runtime.control
        if control is None:
            raise unavailable("there is no server to ask")
        if not isinstance(identifier, int):
            raise ProtocolError("a question has no id")

        async def run_action() -> None:
            try:
                answer: Answer = {"value": await action(control)}
            except Exception as error:
                answer = unexpected(error, "serving the call of a model")
            self._answer(identifier, answer, True)

        asyncio.run_coroutine_threadsafe(run_action(), runtime.loop)

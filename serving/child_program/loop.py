"""The child's main loop: one stub, one message at a time, until the server says `finalize` or goes away."""

import importlib
import socket
import sys
import traceback
from typing import cast

from serving.backends.channel.channel import Channel, Closed, close_all
from serving.backends.channel.messages import (
    CompleteConfig,
    Completed,
    Execute,
    Initialize,
    Ready,
    ResponseBody,
    Result,
)
from serving.backends.channel.shared_memory import SharedMemoryMap, SharedMemoryPool
from serving.backends.channel.tensors import TensorWriter
from serving.child_program.failures import failed
from serving.child_program.stub import Stub

STUBS: dict[str, str] = {
    "python": "serving.child_program.python_stub:PythonStub",
    "backend": "serving.child_program.backend_stub:BackendStub",
}


def serve(channel: Channel, link: socket.socket) -> None:
    """Do what the first message says: complete a configuration and end, or load a model and execute its batches."""
    received, _ = channel.receive()
    message = cast("Initialize | CompleteConfig", received)
    module, _, name = STUBS[message["stub"]].partition(":")
    try:
        stub_class: type[Stub] = getattr(importlib.import_module(module), name)
        if message["stub"] == "python":
            del sys.path[0]
        if message["op"] == "complete_config":
            completed: Completed = {"op": "completed", "config": stub_class.complete_config(message)}
            channel.send(completed)
            return
        stub = stub_class(message, link)
    except BaseException as error:
        channel.send(failed(error, message["folder"]))
        return
    ready: Ready = {"op": "ready", "has_is_ready": stub.has_is_ready}
    channel.send(ready)
    try:
        _Loop(channel, stub, message["folder"]).run()
    except Closed:
        return


class _Loop:
    def __init__(self, channel: Channel, stub: Stub, folder: str) -> None:
        self._channel = channel
        self._stub = stub
        self._folder = folder
        self._inputs = SharedMemoryMap(writable=True)
        self._outputs = SharedMemoryPool()

    def run(self) -> None:
        while True:
            message, descriptors = self._channel.receive()
            if message["op"] == "execute":
                self._execute(cast("Execute", message), descriptors)
            else:
                self._finalize()
                return

    def _execute(self, message: Execute, descriptors: list[int]) -> None:
        self._inputs.drop(message["dropped"])
        for identifier in message["freed"]:
            self._outputs.release(identifier)
        identifier = message["segment"]
        memory = self._inputs.open(identifier, descriptors[0]) if descriptors else self._inputs.get(identifier)
        close_all(descriptors)
        writer = TensorWriter()
        try:
            responses = self._stub.execute(message["requests"], memory, writer)
        except Closed:
            raise
        except BaseException as error:
            self._channel.send(failed(error, self._folder))
        else:
            self._answer(responses, writer)

    def _answer(self, responses: list[ResponseBody], writer: TensorWriter) -> None:
        result: Result = {"op": "result", "segment": 0, "dropped": [], "responses": responses}
        if not writer.size:
            self._channel.send(result)
            return
        segment = self._outputs.acquire(writer.size)
        writer.write(segment.memory)
        result["segment"] = segment.id
        result["dropped"] = self._outputs.take_dropped()
        self._channel.send(result, [segment.descriptor] if segment.fresh else [])
        self._outputs.sent(segment)

    def _finalize(self) -> None:
        try:
            self._stub.finalize()
        except BaseException:
            traceback.print_exc()
        self._channel.send({"op": "finalized"})

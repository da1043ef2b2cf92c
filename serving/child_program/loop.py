"""The child's main loop: one stub, one message at a time, until the server sends `finalize` or ends."""

import importlib
import socket
import sys
from typing import Any, cast

from serving.backends.channel.channel import Closed, close_all
from serving.backends.channel.messages import (
    CompleteConfig,
    Completed,
    Initialize,
    Ready,
    ResponseBody,
    Result,
)
from serving.backends.channel.packet_channel import PacketChannel
from serving.backends.channel.shared_memory import SharedMemoryMap, SharedMemoryPool
from serving.backends.channel.tensors import TensorWriter
from serving.child_program.failures import failed, log_traceback
from serving.child_program.pb_utils.process import PROCESS
from serving.child_program.stub import Stub


def serve(channel: PacketChannel, link: socket.socket) -> None:
    """Do as the first message says: complete a configuration and end, or load a model and execute its batches."""
    received, _ = channel.receive()
    message = cast("Initialize | CompleteConfig", received)
    module, _, name = message["stub"].partition(":")
    start_failure = failed
    try:
        stub_class: type[Stub] = getattr(importlib.import_module(module), name)
        # From here on a model is imported, whose published version folder must not change.
        sys.dont_write_bytecode = True
        start_failure = stub_class.start_failure
        if stub_class.own_imports:
            del sys.path[0]
        if message["op"] == "complete_config":
            completed: Completed = {"op": "completed", "config": stub_class.complete_config(message)}
            channel.send(completed)
            return
        stub = stub_class(message, link)
    except BaseException as error:
        channel.send(start_failure(error, message["folder"]))
        return
    ready: Ready = {"op": "ready", "has_is_ready": stub.has_is_ready}
    channel.send(ready)
    try:
        _Loop(channel, stub, message["folder"]).run()
    except Closed:
        return


class _Loop:
    def __init__(self, channel: PacketChannel, stub: Stub, folder: str) -> None:
        self._channel = channel
        self._stub = stub
        self._folder = folder
        self._inputs = SharedMemoryMap(writable=True)
        self._outputs = PROCESS.outputs = SharedMemoryPool()

    def run(self) -> None:
        receive = self._channel.receive
        while True:
            message, descriptors = receive()
            if not isinstance(message, list):
                self._finalize()
                return
            self._execute(message, descriptors)

    def _execute(self, message: Any, descriptors: list[int]) -> None:
        """Execute a batch: the message is an Execute."""
        segment, key, requests, parameters, freed, dropped = message
        if dropped:
            self._inputs.drop(dropped)
        for identifier in freed:
            self._outputs.release(identifier)
        if descriptors:
            memory = self._inputs.open(segment, descriptors[0])
            close_all(descriptors)
        else:
            memory = self._inputs.get(segment)
        for *_, details in requests if parameters else ():
            if details is not None and "shared" in details:
                details["parameters"] = parameters[details["shared"]]
        writer = TensorWriter()
        try:
            responses = self._stub.execute(key, requests, memory, writer)
        except Closed:
            raise
        except BaseException as error:
            self._channel.send(self._stub.failure(error, self._folder))
        else:
            self._answer(responses, writer)

    def _answer(self, responses: list[ResponseBody], writer: TensorWriter) -> None:
        if not writer.size:
            self._channel.send((0, responses, ()))
            return
        segment = self._outputs.acquire(writer.size)
        writer.write(segment.memory)
        result: Result = segment.id, responses, self._outputs.take_dropped()
        if segment.fresh:
            self._channel.send(result, [segment.descriptor])
            self._outputs.sent(segment)
        else:
            self._channel.send(result)

    def _finalize(self) -> None:
        try:
            self._stub.finalize()
        except BaseException as error:
            log_traceback(error)
        self._channel.send({"op": "finalized"})

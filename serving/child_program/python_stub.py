"""Runs a Python model: passes it requests, and encodes its responses for the server."""

import inspect
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import cast
from weakref import WeakValueDictionary

from serving.backends.channel.channel import ChannelError
from serving.backends.channel.messages import (
    CompleteConfig,
    ErrorPair,
    Failed,
    Initialize,
    InitializePython,
    IsReady,
    RequestDetails,
    RequestMessage,
    ResponseBody,
    Taken,
)
from serving.backends.channel.shared_memory import KEEP_BYTES
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.failures import describe, failed
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink
from serving.child_program.pb_utils import triton_python_backend_utils as pb_utils
from serving.child_program.pb_utils.inference import served_keys
from serving.child_program.pb_utils.process import PROCESS
from serving.child_program.pb_utils.request import ReceivedRequest
from serving.child_program.pb_utils.response import encode_response
from serving.child_program.pb_utils.response_sender import ResponseStream
from serving.child_program.python_model import PythonModel, import_model
from serving.child_program.stub import Stub


class PythonStub(Stub):
    """Runs a TritonPythonModel, decoupled or not, and answers the server's questions whether it is ready."""

    own_imports = True

    def __init__(self, message: Initialize, link: socket.socket) -> None:
        settings = cast("InitializePython", message)
        self._link = PROCESS.link = ServerLink(link, self._on_message)
        # The windows of requests with an open stream, by key.
        self._windows: WeakValueDictionary[int, ResponseWindow] = WeakValueDictionary()
        if settings["decoupled"]:
            self._link.connect()
        self._model = PythonModel(Path(settings["model_file"]), settings["args"])
        self._executor: _Executor = (
            _DecoupledExecutor(self._model, self._link, settings, self._windows)
            if settings["decoupled"]
            else _BatchExecutor(self._model, self._link, settings)
        )
        self._readiness = _Readiness(self._model, self._link, settings["folder"])
        self.has_is_ready = self._model.has_is_ready
        if self.has_is_ready:
            self._link.connect()

    @staticmethod
    def complete_config(message: CompleteConfig) -> dict[str, object] | None:
        """Return the configuration of `auto_complete_config`, as JSON, or None if the model lacks that method."""
        complete = getattr(import_model(Path(message["model_file"])), "auto_complete_config", None)
        if complete is None:
            return None
        result = complete(pb_utils.ModelConfig(message["config"]))
        if not isinstance(result, pb_utils.ModelConfig):
            raise pb_utils.TritonModelException(
                "auto_complete_config must return the pb_utils.ModelConfig that it was given"
            )
        return result.as_dict()

    def execute(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        return self._executor.execute(key, requests, memory, writer)

    def failure(self, error: BaseException, folder: str) -> Failed:
        return self._executor.failure(error)

    def finalize(self) -> None:
        self._model.finalize()

    def _on_message(self, message: IsReady | Taken) -> None:
        """Take a message from the server that is no answer. Called on the link's thread."""
        if message["op"] == "is_ready":
            self._readiness.ask(message["id"])
        elif (window := self._windows.get(message["key"])) is not None:
            window.note_taken(message["size"])


class _Executor(ABC):
    """Executes the batches of one model."""

    def __init__(self, model: PythonModel, link: ServerLink, settings: InitializePython) -> None:
        self._model = model
        self._link = link
        self._folder = settings["folder"]
        self._outputs = settings["outputs"]
        self._name = settings["args"]["model_name"]
        self._instance = settings["args"]["model_instance_name"]

    @abstractmethod
    def execute(
        self, key: int, messages: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        """Execute a batch, as Stub.execute describes."""

    def _received(self, key: int, messages: Sequence[RequestMessage], memory: Memory) -> list[ReceivedRequest]:
        """Return the requests of the messages. The model's calls of other models now count as made for these requests."""
        served_keys.set(range(key, key + len(messages)))
        outputs, link = self._outputs, self._link
        return [ReceivedRequest(message, own, memory, outputs, link) for own, message in enumerate(messages, key)]

    def failure(self, error: BaseException) -> Failed:
        """Return the message for an exception of the model, and log the exception's traceback."""
        failure = failed(error, self._folder)
        failure["message"] = f"Failed to process the request(s) for model '{self._name}', message: {failure['message']}"
        return failure

    def _error(self, error: BaseException) -> ErrorPair:
        """Return the error of a request for an exception of the model."""
        failure = self.failure(error)
        return failure["code"], failure["message"]


class _BatchExecutor(_Executor):
    """Executes a model that is not decoupled: `execute` returns the responses, or response senders send them."""

    def execute(
        self, key: int, messages: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        requests = self._received(key, messages, memory)
        try:
            result = self._model.execute(requests)
            if not isinstance(result, list) and inspect.iscoroutine(result):
                result = self._model.start(result).result()
            responses = _responses(requests, result)
            return [
                self._describe(request, response, writer) for request, response in zip(requests, responses, strict=True)
            ]
        except ChannelError:
            raise
        except BaseException as error:
            if all(request.sender is None or request.sender.response is None for request in requests):
                raise
            return self._failed_after_some(requests, error, writer)
        finally:
            for request in requests:
                request.release()

    def _describe(
        self, request: ReceivedRequest, response: pb_utils.InferenceResponse | None, writer: TensorWriter
    ) -> ResponseBody:
        if response is not None:
            return encode_response(response, request.outputs, writer)
        if request.rescheduled:
            return {"again": True}
        assert request.sender is not None
        self._link.connect()
        sent = request.sender.executed(ResponseStream(self._link, request.key, request.outputs))
        return {"later": True} if sent is None else encode_response(sent, request.outputs, writer)

    def _failed_after_some(
        self, requests: list[ReceivedRequest], error: BaseException, writer: TensorWriter
    ) -> list[ResponseBody]:
        """Return the error for each request, or the response if the model answered before `execute` failed."""
        failure: ResponseBody = {"error": self._error(error)}
        sent = [None if request.sender is None else request.sender.response for request in requests]
        return [
            failure if response is None else encode_response(response, request.outputs, writer)
            for request, response in zip(requests, sent, strict=True)
        ]


class _DecoupledExecutor(_Executor):
    """Executes a decoupled model, which sends all responses with response senders. The model's threads may read the inputs long
    after `execute` has returned. windows: the windows of requests with an open stream, by key."""

    def __init__(
        self,
        model: PythonModel,
        link: ServerLink,
        settings: InitializePython,
        windows: "WeakValueDictionary[int, ResponseWindow]",
    ) -> None:
        super().__init__(model, link, settings)
        self._windows = windows

    def execute(
        self, key: int, messages: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        if len(memory) <= KEEP_BYTES:  # the server will write into this segment again
            used = max((row[3] + row[4] for _, _, rows, _ in messages for row in rows), default=0)
            memory = bytearray(memory[:used])
        requests = self._received(key, messages, memory)
        streams = [
            self._open_stream(request, details) for request, (*_, details) in zip(requests, messages, strict=True)
        ]
        try:
            result = self._model.execute(requests)
            if inspect.iscoroutine(result):
                self._model.start(self._watch(result, streams))
                return []
            if result is not None:
                raise pb_utils.TritonModelException(  # Triton's tests expect these words
                    f"Python model '{self._instance}' is using the decoupled mode and the execute function must return None. "
                    f"It returned {type(result).__name__}; responses go through the response sender"
                )
        except ChannelError:
            raise
        except BaseException as error:
            self._fail(streams, error)
            return []
        again = [request.rescheduled for request in requests]
        for stream, comes_again in zip(streams, again, strict=True):
            if comes_again:
                stream.release()
        return [{"again": comes_again} for comes_again in again] if any(again) else []

    def _open_stream(self, request: ReceivedRequest, details: RequestDetails | None) -> ResponseStream:
        window = ResponseWindow(*details["window"]) if details is not None and "window" in details else None
        if window is not None:
            self._windows[request.key] = window
        return request.open_stream(window)

    async def _watch(self, coroutine: Coroutine[object, None, object], streams: list[ResponseStream]) -> None:
        try:
            await coroutine
        except Exception as error:
            self._fail(streams, error)

    def _fail(self, streams: list[ResponseStream], error: BaseException) -> None:
        """End the open streams with an error, after the responses that were already sent."""
        failure = self._error(error)
        for stream in streams:
            stream.fail(failure)


class _Readiness:
    """Asks the model whether it is ready when the server asks."""

    def __init__(self, model: PythonModel, link: ServerLink, folder: str) -> None:
        self._model = model
        self._link = link
        self._folder = folder
        self._reason = ""  # the error of the last call of is_ready; "" if it succeeded

    def ask(self, identifier: int) -> None:
        """Ask on a new thread, because `is_ready` may be slow, or may call the server."""
        threading.Thread(target=self._answer, args=(identifier,), name="is-ready", daemon=True).start()

    def _answer(self, identifier: int) -> None:
        answer: IsReady = {"op": "is_ready", "id": identifier}
        served_keys.set([])
        reason = ""
        try:
            answer["value"] = self._model.is_ready()
        except BaseException as error:
            reason = answer["error"] = describe(error, self._folder)
            if reason != self._reason:  # probes come every second, so a repeated error is not logged again
                failed(error, self._folder)
        self._reason = reason
        try:
            self._link.tell(answer)
        except ChannelError:  # the server has gone
            return


def _responses(requests: list[ReceivedRequest], result: object) -> list[pb_utils.InferenceResponse | None]:
    """Return the response of each request: None if it is rescheduled, or if its sender answers."""
    if result is None and all(request.sender is not None for request in requests):
        return [None] * len(requests)
    if not isinstance(result, list):
        raise pb_utils.TritonModelException(f"execute must return a list of responses, not {type(result).__name__}")
    if len(result) != len(requests):
        raise pb_utils.TritonModelException(f"execute returned {len(result)} responses for {len(requests)} requests")
    for request, response in zip(requests, result, strict=True):
        sender = request.sender
        if response is None and (request.rescheduled or sender is not None):
            continue
        if not isinstance(response, pb_utils.InferenceResponse):
            raise pb_utils.TritonModelException(
                f"execute must return InferenceResponse objects, not {type(response).__name__}"
            )
        if request.rescheduled:
            raise pb_utils.TritonModelException("execute must return None for a request that it asks for again")
        if sender is not None and sender.response is not None:
            raise pb_utils.TritonModelException("execute must return None for a request that its sender has answered")
    return result

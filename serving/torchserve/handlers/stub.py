"""Runs a TorchServe handler: calls it with batches in the form of lists of dicts, and sends its answers to the server."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from serving.backends.channel.channel import ChannelError
from serving.backends.channel.messages import (
    Failed,
    Initialize,
    IsReady,
    RequestDetails,
    RequestMessage,
    ResponseBody,
    Taken,
)
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.failures import failed
from serving.child_program.link.answer_stream import AnswerStream
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink
from serving.child_program.stub import Stub
from serving.torchserve.handlers.answers import AnswerEncoder
from serving.torchserve.handlers.failures import (
    OUT_OF_RESOURCES,
    WRONG_COUNT,
    InvalidAnswer,
    check_answers,
    code_of,
    is_for_client,
    status_and_reason,
)
from serving.torchserve.handlers.inputs import Entry, InputReader
from serving.torchserve.handlers.loading import load_handler
from serving.torchserve.handlers.logs import log_as_torchserve
from serving.torchserve.handlers.messages import InitializeTorchserve
from serving.torchserve.handlers.metrics import MetricExporter
from serving.torchserve.handlers.torchvision_import import find_torchvision_operators

if TYPE_CHECKING:
    from ts.context import Context

_TS_PATH = Path(__file__).resolve().parents[1] / "ts-path"
SERVER_VERSION = "0.12.0"  # the version of TorchServe that handlers see
_DECODES = "TS_DECODE_INPUT_REQUEST"


class TorchserveStub(Stub):
    """Runs the handler of one archive, in the archive's folder."""

    own_imports = True

    def __init__(self, message: Initialize, link: socket.socket) -> None:
        settings = cast("InitializeTorchserve", message)
        _enter(settings["folder"], settings["packages"])
        log_as_torchserve()
        self._name = settings["name"]
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop for a handler that is a coroutine
        self._link = ServerLink(link, self._on_message)
        self._windows: WeakValueDictionary[int, ResponseWindow] = WeakValueDictionary()  # the windows of open streams
        self._folder = settings["folder"]
        self._decoupled = settings["decoupled"]
        self._inputs = InputReader(settings["inputs"], settings["batched"], settings["as_parts"])
        self._answers = AnswerEncoder(settings["outputs"], settings["batched"])
        self._context = context = _context(settings)
        self._measured = _measured(settings, context, self._link)
        if self._decoupled:
            self._link.connect()
        find_torchvision_operators()
        self._handle = load_handler(settings["handler"], settings["envelope"], context)
        if os.environ.get(_DECODES, "true") != "true":  # a handler may have set this itself
            self._inputs.leave_encoded()

    def execute(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        context = self._context
        data, headers, ids = self._inputs.read(key, requests, memory)
        context.begin(ids, headers)
        if self._decoupled:
            self._stream(key, requests, data)
            return []
        answers = self._call(data)
        return self._answers.encode(requests, check_answers(answers, len(data)), context, writer)

    def _call(self, data: list[Entry]) -> object:
        """Call the handler. If metrics are kept, measure the call."""
        if self._measured is None:
            return self._finished(data)
        began = time.perf_counter()
        try:
            return self._finished(data)
        finally:
            self._measured(round((time.perf_counter() - began) * 1000, 2))

    def _finished(self, data: list[Entry]) -> object:
        """Run the handler to its end. Coroutines of all batches run on one event loop, because their objects belong to it."""
        answers = self._handle(data, self._context)
        if type(answers) is not CoroutineType:
            return answers
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(answers)

    def _stream(self, key: int, requests: Sequence[RequestMessage], data: list[Entry]) -> None:
        """Answer a batch over the link: first with each list that the handler sends, then with its result."""
        streams = [self._open_stream(own, details) for own, (*_, details) in enumerate(requests, key)]

        spans = self._answers.spans(requests)
        everyone = self._context.request_ids or {}

        def send(answers: object, ids: Mapping[int, str] = everyone, final: bool = False) -> None:
            """Send one part of the answer to each request in `ids`, in the order of `ids`."""
            chosen = [*range(len(spans))] if ids == everyone else _requests_of(ids, everyone, spans)
            checked = check_answers(answers, sum(spans[index].stop - spans[index].start for index in chosen))
            start = 0
            for index in chosen:
                end = start + spans[index].stop - spans[index].start
                writer = TensorWriter()
                processor = self._context.request_processor[spans[index].start]
                streams[index].send_body(self._answers.response(checked[start:end], processor, writer), writer, final)
                start = end

        self._context.send_intermediate = send
        try:
            send(self._call(data), final=True)
        except ChannelError:
            raise
        except BaseException as error:
            failure = self.failure(error, self._folder)
            for stream in streams:
                stream.fail((failure["code"], failure["message"], failure["status"], failure["reason"]))
        finally:
            self._context.send_intermediate = None

    def _open_stream(self, key: int, details: RequestDetails | None) -> AnswerStream:
        window = ResponseWindow(*details["window"]) if details is not None and "window" in details else None
        if window is not None:
            self._windows[key] = window
        return AnswerStream(self._link, key, window)

    @staticmethod
    def start_failure(error: BaseException, folder: str) -> Failed:
        """Return why the handler could not start, with TorchServe's status 507 if memory ran out or CUDA failed."""
        answer = failed(error, folder)
        if status_and_reason(error) == OUT_OF_RESOURCES:
            answer["status"], answer["reason"] = OUT_OF_RESOURCES
        return answer

    def failure(self, error: BaseException, folder: str) -> Failed:
        """Return the failure: code and message for V2 clients, status and reason for TorchServe clients.

        If the handler raised SystemExit, this process exits.
        """
        if isinstance(error, SystemExit):
            sys.stdout.flush()
            os._exit(error.code if isinstance(error.code, int) else 1)
        answer = failed(error, folder)
        status, reason = answer["status"], answer["reason"] = status_and_reason(error)
        answer["code"] = code_of(status)
        answer["message"] = (
            reason if is_for_client(error) else f"the handler of model '{self._name}' failed: {answer['message']}"
        )
        return answer

    def _on_message(self, message: IsReady | Taken) -> None:
        """Take a message from the server that is no answer. Runs on the link's thread."""
        if message["op"] == "taken" and (window := self._windows.get(message["key"])) is not None:
            window.note_taken(message["size"])


def _requests_of(ids: Mapping[int, str], everyone: Mapping[int, str], spans: Sequence[slice]) -> list[int]:
    """Return the indexes of the requests with these ids in a batch. everyone: the ids of all entries of the batch."""
    known = {everyone[span.start]: index for index, span in enumerate(spans)}
    unknown = set(ids.values()) - set(known)
    if unknown:
        raise InvalidAnswer("it sent a part of an answer to a request that is not in the batch", WRONG_COUNT)
    return [known[one] for one in ids.values()]


def _enter(folder: str, packages: str) -> None:
    """Make the archive's folder the working directory, and an import path, of the handler and of programs that it starts."""
    os.chdir(folder)
    own = list(filter(None, (str(_TS_PATH), folder, packages)))
    sys.path[:0] = own
    os.environ["PYTHONPATH"] = ":".join(filter(None, (*own, os.environ.get("PYTHONPATH", ""))))


def _measured(settings: InitializeTorchserve, context: "Context", link: ServerLink) -> Callable[[float], None] | None:
    """Begin to send the handler's metrics. Return a function that records the time of a batch, or None without metrics."""
    if not settings["metrics"]:
        return None
    named = {(kind.value, name) for kind, metrics in context.metrics.cache.items() for name in metrics}
    exporter = MetricExporter(link, None if settings["metrics_auto_detect"] else named)
    return exporter.gauge("PredictionTime", "Milliseconds", {"ModelName": settings["name"], "Level": "Model"})


def _context(settings: InitializeTorchserve) -> "Context":
    from ts.context import Context
    from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl

    metrics = MetricsCacheYamlImpl(settings["metrics_config"])
    metrics.model_name = settings["name"]
    metrics.initialize_cache()
    return Context(
        settings["name"],
        settings["folder"],
        settings["manifest"],
        settings["batch_size"],
        settings["gpu"],
        SERVER_VERSION,
        settings["limit_max_image_pixels"],
        metrics=metrics,
        model_yaml_config=_model_settings(settings),
    )


def _model_settings(settings: InitializeTorchserve) -> Mapping[str, Any]:
    """Return model-config.yaml as PyYAML reads it, with keys that may be numbers, or as JSON without PyYAML."""
    if not settings["settings_file"]:
        return {}
    try:
        import yaml
    except ImportError:
        return settings["settings"]
    with open(settings["settings_file"], "rb") as file:
        try:
            found = yaml.safe_load(file)
        except (yaml.YAMLError, ValueError, RecursionError):
            return {}
    return found if isinstance(found, dict) else {}

"""Runs Triton's TritonPythonModel: imports model.py, hands it requests, and describes its responses to the server."""

import importlib.util
import inspect
import sys
import threading
import types
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from serving.backends.channel.channel import ChannelError, Message
from serving.backends.channel.segments import KEEP_BYTES
from serving.backends.channel.tensors import Writer
from serving.child_program import server_link
from serving.child_program.event_loop import ModelLoop
from serving.child_program.loop import Servant, failed
from serving.child_program.loop import describe as describe_failure
from serving.child_program.pacing import Window
from serving.child_program.pb_utils import triton_python_backend_utils as pb_utils
from serving.child_program.pb_utils.inference import serving_now
from serving.child_program.pb_utils.messages import InferenceTrace
from serving.child_program.pb_utils.senders import Stream, describe
from serving.child_program.server_link import ServerLink

sys.modules["triton_python_backend_utils"] = pb_utils


def import_model(message: Message) -> Any:
    """The class TritonPythonModel of the model's file. Its folder can be imported from, both plainly and relatively."""
    path = Path(message["model_file"])
    pb_utils._model_dir = str(path.parent)
    sys.path += [str(path.parent), str(path.parent.parent)]
    package = types.ModuleType(path.parent.name)
    package.__path__ = [str(path.parent)]
    sys.modules[package.__name__] = package
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    try:
        return module.TritonPythonModel
    except AttributeError:
        raise pb_utils.TritonModelException(f"{path.name} has no class TritonPythonModel") from None


class PythonServant(Servant):
    def __init__(self, message: Message, link: ServerLink) -> None:
        self._link = server_link.current = link
        self._decoupled: bool = message["decoupled"]
        self._windows: WeakValueDictionary[int, Window] = WeakValueDictionary()  # of requests whose streams are open
        link.on_question = self._asked
        if self._decoupled:
            link.connect()
        self._folder: str = message["folder"]
        self._name: str = message["args"]["model_name"]
        self._instance: str = message["args"]["model_instance_name"]
        self._outputs: list[str] = message["outputs"]
        self._loop = ModelLoop()
        model_class = import_model(message)
        if not callable(getattr(model_class, "execute", None)):
            raise pb_utils.TritonModelException("the class TritonPythonModel has no method 'execute'")
        self._model = model_class()
        if hasattr(self._model, "initialize"):
            self._model.initialize(message["args"])
        self._unready = ""  # why is_ready failed when it was last asked
        self.asks = hasattr(self._model, "is_ready")
        if self.asks:
            link.connect()

    @staticmethod
    def complete_config(message: Message) -> Message | None:
        model_class = import_model(message)
        complete = getattr(model_class, "auto_complete_config", None)
        if complete is None:
            return None
        result = complete(pb_utils.ModelConfig(message["config"]))
        if not isinstance(result, pb_utils.ModelConfig):
            raise pb_utils.TritonModelException(
                "auto_complete_config must return the pb_utils.ModelConfig that it was given"
            )
        return result.as_dict()

    def execute(self, requests: list[Message], memory: Any, writer: Writer) -> list[Message]:
        if self._decoupled:
            return self._execute_decoupled(requests, memory)
        mine = [self._request(request, memory) for request in requests]
        serving_now.set([request["key"] for request in requests])
        try:
            result = self._model.execute(mine)
            if inspect.iscoroutine(result):
                result = self._loop.start(result).result()
            responses = _responses(mine, result)
            return [
                self._described(request, response, writer) for request, response in zip(mine, responses, strict=True)
            ]
        except ChannelError:
            raise
        except BaseException as error:
            if all(request._sender is None or request._sender._response is None for request in mine):
                raise
            return self._failed_after_some(mine, error, writer)
        finally:
            for request in mine:
                request._release()

    def finalize(self) -> None:
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _request(self, message: Message, memory: Any) -> pb_utils.InferenceRequest:
        request = pb_utils.InferenceRequest._received(
            message["id"],
            message.get("sequence", 0),
            [
                pb_utils.Tensor._from_memory(name, kind, shape, memory, offset, length)
                for name, kind, shape, offset, length in message["inputs"]
            ],
            list(message.get("requested") or self._outputs),
            message.get("flags", 0),
            message.get("timeout", 0),
            message.get("priority", 0),
            message.get("parameters", {}),
            InferenceTrace(message["key"], message["trace"]) if "trace" in message else InferenceTrace(),
        )
        key = request._key = message["key"]
        if self._decoupled:
            window = Window(*message["window"]) if "window" in message else None
            request._stream = Stream(self._link, key, request.requested_output_names(), window)
            if window is not None:
                self._windows[key] = window
        request._is_cancelled = lambda: self._link.ask({"op": "cancelled", "key": key})
        return request

    def _described(
        self, request: pb_utils.InferenceRequest, response: pb_utils.InferenceResponse | None, writer: Writer
    ) -> Message:
        wanted = request.requested_output_names()
        if response is None and request._rescheduled:
            return {"again": True}
        if response is None:
            assert request._sender is not None
            self._link.connect()
            response = request._sender._taken(Stream(self._link, request._key, wanted))
        return {"later": True} if response is None else describe(response, wanted, writer)

    def _failed_after_some(
        self, requests: list[pb_utils.InferenceRequest], error: BaseException, writer: Writer
    ) -> list[Message]:
        """What went to a response sender before `execute` failed is the answer all the same."""
        failure = failed(error, self._folder)
        told: Message = {
            "error": [
                failure["code"],
                f"Failed to process the request(s) for model '{self._name}', message: {failure['message']}",
            ]
        }
        sent = [None if request._sender is None else request._sender._response for request in requests]
        return [
            told if response is None else describe(response, request.requested_output_names(), writer)
            for request, response in zip(requests, sent, strict=True)
        ]

    def _execute_decoupled(self, requests: list[Message], memory: Any) -> list[Message]:
        """The answers go through response senders, whose threads may read the inputs long after this returns."""
        if len(memory) <= KEEP_BYTES:  # the server will write this segment again
            used = max((row[3] + row[4] for request in requests for row in request["inputs"]), default=0)
            memory = bytearray(memory[:used])
        mine = [self._request(request, memory) for request in requests]
        streams = [request._stream for request in mine if request._stream is not None]
        serving_now.set([request["key"] for request in requests])
        try:
            result = self._model.execute(mine)
            if inspect.iscoroutine(result):
                self._loop.start(self._watch(result, streams))
                return []
            if result is not None:
                raise pb_utils.TritonModelException(  # the words that Triton's tests look for
                    f"Python model '{self._instance}' is using the decoupled mode and the execute function must return None. "
                    f"It returned {type(result).__name__}; responses go through the response sender"
                )
        except ChannelError:
            raise
        except BaseException as error:
            self._fail(streams, error)
            return []
        again = [request for request in mine if request._rescheduled]
        for request in again:
            if request._stream is not None:
                request._stream.release()
        return [{"again": request._rescheduled} for request in mine] if again else []

    async def _watch(self, coroutine: Any, streams: list[Stream]) -> None:
        try:
            await coroutine
        except Exception as error:
            self._fail(streams, error)

    def _fail(self, streams: list[Stream], error: BaseException) -> None:
        """End what is open, behind whatever was sent before."""
        failure = failed(error, self._folder)
        for stream in streams:
            stream.fail(
                failure["code"],
                f"Failed to process the request(s) for model '{self._name}', message: {failure['message']}",
            )

    def _asked(self, question: Message) -> None:
        """What the server says by itself; on the link's thread."""
        if question["op"] == "is_ready":
            # On a thread of its own: the method may take its time, or ask the server itself.
            threading.Thread(target=self._tell_ready, args=(question["id"],), name="is-ready", daemon=True).start()
            return
        window = self._windows.get(question["key"])
        if window is not None:
            window.taken(question["size"])

    # -- readiness -------------------------------------------------------------------------------------------------
    def _tell_ready(self, identifier: int) -> None:
        answer: Message = {"op": "is_ready", "id": identifier}
        serving_now.set([])
        try:
            ready = self._model.is_ready()
            if inspect.iscoroutine(ready):
                ready = self._loop.start(ready).result()
            if not isinstance(ready, bool):
                raise pb_utils.TritonModelException(f"is_ready must return a boolean, not {type(ready).__name__}")
            answer["value"] = ready
        except BaseException as error:
            answer["error"] = describe_failure(error, self._folder)
            if answer["error"] != self._unready:  # probes come every second: its traceback goes to the log once
                failed(error, self._folder)
        self._unready = answer.get("error", "")
        try:
            self._link.tell(answer)
        except ChannelError:  # the server has gone
            return


def _responses(requests: list[pb_utils.InferenceRequest], result: Any) -> list[pb_utils.InferenceResponse | None]:
    """What execute returned for each request; None for one that comes again or is answered by its sender."""
    if result is None and all(request._sender is not None for request in requests):
        return [None] * len(requests)
    if not isinstance(result, list):
        raise pb_utils.TritonModelException(f"execute must return a list of responses, not {type(result).__name__}")
    if len(result) != len(requests):
        raise pb_utils.TritonModelException(f"execute returned {len(result)} responses for {len(requests)} requests")
    for request, response in zip(requests, result, strict=True):
        if response is None and (request._rescheduled or request._sender is not None):
            continue
        if not isinstance(response, pb_utils.InferenceResponse):
            raise pb_utils.TritonModelException(
                f"execute must return InferenceResponse objects, not {type(response).__name__}"
            )
        if request._rescheduled:
            raise pb_utils.TritonModelException("execute must return None for a request that it asks for again")
        if request._sender is not None and request._sender._response is not None:
            raise pb_utils.TritonModelException("execute must return None for a request that its sender has answered")
    return result

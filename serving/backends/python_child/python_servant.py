"""Runs Triton's TritonPythonModel: imports model.py, hands it requests, and describes its responses to the server."""

import asyncio
import importlib.util
import inspect
import sys
import types
from pathlib import Path
from typing import Any

from serving.backends.python_child import triton_python_backend_utils as pb_utils
from serving.backends.python_child.channel import Message
from serving.backends.python_child.loop import Link, Servant
from serving.backends.python_child.tensors import Writer

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
    def __init__(self, message: Message, link: Link) -> None:
        self._link = link
        self._outputs: list[str] = message["outputs"]
        self._event_loop: asyncio.AbstractEventLoop | None = None
        model_class = import_model(message)
        if not callable(getattr(model_class, "execute", None)):
            raise pb_utils.TritonModelException("the class TritonPythonModel has no method 'execute'")
        self._model = model_class()
        if hasattr(self._model, "initialize"):
            self._model.initialize(message["args"])

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
        mine = [self._request(index, request, memory) for index, request in enumerate(requests)]
        try:
            result = self._model.execute(mine)
            if inspect.iscoroutine(result):
                result = self._run(result)
            responses = _responses(mine, result)
            return [self._describe(*pair, writer) for pair in zip(mine, responses, strict=True)]
        finally:
            for request in mine:
                request._release()

    def finalize(self) -> None:
        if hasattr(self._model, "finalize"):
            self._model.finalize()

    # -- inside ----------------------------------------------------------------------------------------------------
    def _request(self, index: int, message: Message, memory: Any) -> pb_utils.InferenceRequest:
        request = pb_utils.InferenceRequest(
            request_id=message["id"],
            correlation_id=message.get("sequence", 0),
            inputs=[
                pb_utils.Tensor._from_memory(name, kind, shape, memory, offset, length)
                for name, kind, shape, offset, length in message["inputs"]
            ],
            requested_output_names=message.get("requested") or self._outputs,
            flags=message.get("flags", 0),
            timeout=message.get("timeout", 0),
            priority=message.get("priority", 0),
            parameters=message.get("parameters"),
        )
        request._is_cancelled = lambda: self._link.ask({"op": "cancelled", "request": index})["value"]
        return request

    def _run(self, coroutine: Any) -> Any:
        if self._event_loop is None:
            self._event_loop = asyncio.new_event_loop()
        return self._event_loop.run_until_complete(coroutine)

    def _describe(self, request: pb_utils.InferenceRequest, response: Any, writer: Writer) -> Message:
        error = response.error()
        if error is not None:
            return {"error": [error.code().value, _valid(error.message())]}
        wanted = request.requested_output_names()
        rows = [
            writer.add(tensor.name(), *tensor._host())
            for tensor in response.output_tensors()
            if tensor.name() in wanted
        ]
        return {"outputs": rows, "parameters": response._parameters} if response._parameters else {"outputs": rows}


def _responses(requests: list[pb_utils.InferenceRequest], result: Any) -> list[pb_utils.InferenceResponse]:
    """One response for each request: returned by execute, or given to the request's sender."""
    sent = [request._sender._response if request._sender is not None else None for request in requests]
    if result is None and all(response is not None for response in sent):
        return [response for response in sent if response is not None]
    if not isinstance(result, list):
        raise pb_utils.TritonModelException(f"execute must return a list of responses, not {type(result).__name__}")
    if len(result) != len(requests):
        raise pb_utils.TritonModelException(f"execute returned {len(result)} responses for {len(requests)} requests")
    responses = []
    for returned, given in zip(result, sent, strict=True):
        response = returned if returned is not None else given
        if not isinstance(response, pb_utils.InferenceResponse):
            raise pb_utils.TritonModelException(
                f"execute must return InferenceResponse objects, not {type(response).__name__}"
            )
        responses.append(response)
    return responses


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()

"""Runs a TorchServe handler: hands it batches as lists of dicts, and describes its answers to the server."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

from serving.backends.channel.messages import (
    Failed,
    Initialize,
    InitializeTorchserve,
    IsReady,
    RequestMessage,
    ResponseBody,
    Taken,
)
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.failures import failed
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink
from serving.child_program.stub import Stub
from serving.child_program.torchserve.answers import AnswerEncoder
from serving.child_program.torchserve.failures import check_answers, code_of, told
from serving.child_program.torchserve.inputs import InputReader
from serving.child_program.torchserve.loading import load_handler

if TYPE_CHECKING:
    from ts.context import Context

_TS_PATH = Path(__file__).resolve().parents[1] / "torchserve-path"
SERVER_VERSION = "0.12.0"  # of the TorchServe whose handlers run here


class TorchserveStub(Stub):
    """Runs the handler of one archive, in the archive's folder."""

    def __init__(self, message: Initialize, link: socket.socket) -> None:
        settings = cast("InitializeTorchserve", message)
        _enter(settings["folder"])
        self._name = settings["name"]
        self._link = ServerLink(link, self._on_message)
        self._windows: WeakValueDictionary[int, ResponseWindow] = WeakValueDictionary()  # of streams that are open
        self._inputs = InputReader(settings["inputs"], settings["batched"])
        self._answers = AnswerEncoder(settings["outputs"], settings["batched"])
        self._context = _context(settings)
        self._handle = load_handler(settings["handler"], settings["envelope"], self._context)

    def execute(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        context = self._context
        data, headers, ids = self._inputs.read(key, requests, memory)
        context.begin(ids, headers)
        answers = self._handle(data, context)
        return self._answers.encode(requests, check_answers(answers, len(data)), context, writer)

    def failure(self, error: BaseException, folder: str) -> Failed:
        """Return what clients of both protocols are told. A handler that ends its process has ended it."""
        if isinstance(error, SystemExit):
            sys.stdout.flush()
            os._exit(error.code if isinstance(error.code, int) else 1)
        answer = failed(error, folder)
        answer["status"], answer["reason"] = told(error)
        answer["code"] = code_of(answer["status"])
        answer["message"] = f"the handler of model '{self._name}' failed: {answer['message']}"
        return answer

    def _on_message(self, message: IsReady | Taken) -> None:
        """Take what the server says by itself. On the link's thread."""
        if message["op"] == "taken" and (window := self._windows.get(message["key"])) is not None:
            window.taken(message["size"])


def _enter(folder: str) -> None:
    """Make the archive's folder the working directory, from which the handler imports, and programs that it starts."""
    os.chdir(folder)
    sys.path[:0] = [str(_TS_PATH), folder]
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = ":".join(filter(None, (folder, str(_TS_PATH), before)))


def _context(settings: InitializeTorchserve) -> "Context":
    from ts.context import Context

    return Context(
        settings["name"],
        settings["folder"],
        settings["manifest"],
        settings["batch_size"],
        settings["gpu"],
        SERVER_VERSION,
        settings["limit_max_image_pixels"],
        model_yaml_config=settings["settings"],
    )

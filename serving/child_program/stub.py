"""The interface of a stub, which serves one model in a child process. Triton calls such a process a stub."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence

from serving.backends.channel.messages import CompleteConfig, Failed, Initialize, RequestMessage, ResponseBody
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.failures import failed


class Stub(ABC):
    """Loads a model and executes its batches. `failures.describe` turns exceptions of a stub into messages for clients."""

    own_imports = False  # True if the model may import its own modules, but none of the server
    has_is_ready = False  # True if the model has the method is_ready

    @abstractmethod
    def __init__(self, message: Initialize, link: socket.socket) -> None:
        """Load the model. link: the socket for a model's own messages to the server (see ServerLink)."""

    @abstractmethod
    def execute(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        """Return one response for each request, or [] for a decoupled model, which sends its responses itself.

        key: the server's number for the first request. The other requests have the next numbers. memory: the memory of the
        inputs, which the server may overwrite after this method returns. writer: takes the outputs.
        """

    @staticmethod
    def start_failure(error: BaseException, folder: str) -> Failed:
        """Return the message for a model that could not be loaded, and log the traceback of `error`."""
        return failed(error, folder)

    def failure(self, error: BaseException, folder: str) -> Failed:
        """Return the message for a batch whose `execute` has raised `error`, and log the traceback."""
        return failed(error, folder)

    def finalize(self) -> None:  # noqa: B027
        """Call the model's `finalize`. Called once, before the process ends."""

    @staticmethod
    def complete_config(message: CompleteConfig) -> dict[str, object] | str | None:
        """Return the completed configuration, in the format of the given one, or None if the model completes nothing."""
        return None

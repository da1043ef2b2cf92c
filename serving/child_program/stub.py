"""What serves one model in a child process, by Triton's name for that process: a stub."""

import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence

from serving.backends.channel.messages import CompleteConfig, Failed, Initialize, RequestMessage, ResponseBody
from serving.backends.channel.tensors import Memory, TensorWriter
from serving.child_program.failures import failed


class Stub(ABC):
    """Loads a model and executes its batches. What it raises goes to the client as `failures.describe` puts it."""

    own_imports = False  # whether the model imports modules of its own, and none of the server's
    has_is_ready = False  # whether the model wants to be asked if it is ready

    @abstractmethod
    def __init__(self, message: Initialize, link: socket.socket) -> None:
        """Load the model. `link` leads to the server, for a model that speaks to it by itself (see ServerLink)."""

    @abstractmethod
    def execute(
        self, key: int, requests: Sequence[RequestMessage], memory: Memory, writer: TensorWriter
    ) -> list[ResponseBody]:
        """Return one response for each request; none where a decoupled model sends them by itself.

        key: the server's number for the first request; the others have those that follow. memory: what the inputs lie in; it is
        written again when this has returned. writer: takes the outputs.
        """

    @staticmethod
    def start_failure(error: BaseException, folder: str) -> Failed:
        """Return the message for a model that could not be loaded; the traceback goes to the log."""
        return failed(error, folder)

    def failure(self, error: BaseException, folder: str) -> Failed:
        """Return the message for a batch whose `execute` has raised; the traceback goes to the log."""
        return failed(error, folder)

    def finalize(self) -> None:  # noqa: B027
        """Let the model finalize. Called once, before the process ends."""

    @staticmethod
    def complete_config(message: CompleteConfig) -> dict[str, object] | str | None:
        """Return the completed configuration, in the form in which it came; None where the model completes nothing."""
        return None

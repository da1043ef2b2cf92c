"""The response sender of a decoupled model: any number of responses, from any thread, also after `execute` returned."""

import threading
from typing import TYPE_CHECKING, Any

from serving.backends.channel.channel import Message
from serving.backends.channel.tensors import Writer
from serving.child_program.pacing import Window
from serving.child_program.pb_utils.errors import TritonModelException
from serving.child_program.server_link import ServerLink

if TYPE_CHECKING:
    from serving.child_program.pb_utils.messages import InferenceResponse

FINAL = 1


class Stream:
    """The open answer of one request: held by the request and by its sender. When both are gone it ends with an error."""

    def __init__(self, link: ServerLink, key: int, wanted: list[str], window: Window | None = None) -> None:
        self.window = window
        self._link = link
        self._key = key
        self._wanted = wanted
        self._closed = False
        self._given_up = False
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if not self._closed:
            text = "the model let go of the request's response sender without its final flag"
            self._link.tell_later({"op": "response", "key": self._key, "final": True, "error": ["INTERNAL", text]})

    def send(self, response: "InferenceResponse | None", flags: int) -> None:
        if flags not in (0, FINAL):
            raise TritonModelException(f"send takes 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL as flags, not {flags}")
        final = flags == FINAL
        if response is None and not final:
            raise TritonModelException("send needs a response unless the final flag is set")
        writer = Writer()
        message: Message = {"op": "response", "key": self._key, "final": final}
        if response is not None:
            message |= describe(response, self._wanted, writer)
        if not self._may_send(message):
            return
        with self._lock:
            if self._closed:
                raise TritonModelException("the final response of this request was sent before")
            self._closed = final
            self._link.tell(message, writer)

    def _may_send(self, message: Message) -> bool:
        """Wait for the client to take what was sent before. False where it does not: then nobody reads any more."""
        if self.window is not None and "outputs" in message and not self._given_up:
            self._given_up = not self.window.wait(sum(row[4] for row in message["outputs"]))
            if self._given_up:
                self.fail("UNAVAILABLE", "the client took no response for too long")
        return not self._given_up

    def fail(self, code: str, text: str) -> None:
        """End with an error, unless it has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._link.tell({"op": "response", "key": self._key, "final": True, "error": [code, text]})

    def close(self) -> None:
        """The server answers in its place."""
        self._closed = True

    def release(self) -> None:
        """The request will come again: this execution's part of the answer is over."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._link.tell({"op": "release", "key": self._key})

    def is_cancelled(self) -> bool:
        return bool(self._link.ask({"op": "cancelled", "key": self._key}))


def describe(response: Any, wanted: list[str], writer: Writer) -> Message:
    """A response for the server: its error, or the rows of the wanted tensors, which go into `writer`."""
    error = response.error()
    if error is not None:
        return {"error": [error.code().value, error.message().encode("utf-8", "replace").decode()]}
    rows = [
        writer.add(tensor.name(), *tensor._host()) for tensor in response.output_tensors() if tensor.name() in wanted
    ]
    return {"outputs": rows, "parameters": response._parameters} if response._parameters else {"outputs": rows}

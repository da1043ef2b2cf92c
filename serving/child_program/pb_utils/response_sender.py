"""pb_utils.InferenceResponseSender: answers a request in place of `execute`'s return value, from any thread.

A model that is not decoupled answers once, a decoupled one any number of times; both may do so after `execute` has returned.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import cast

from serving.backends.channel.messages import Cancelled, Release, ResponseBody, StreamedResponse
from serving.backends.channel.tensors import TensorWriter
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink
from serving.child_program.pb_utils.response import InferenceResponse, encode_response

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class ResponseStream:
    """The open answer of one request: held by the request and by its sender. When both are gone it ends with an error.

    key: the server's number for the request. wanted: the outputs that are asked for. window: None where nothing holds the
    sender back.
    """

    def __init__(self, link: ServerLink, key: int, wanted: Sequence[str], window: ResponseWindow | None = None) -> None:
        self._link = link
        self._key = key
        self._wanted = wanted
        self._window = window
        self._closed = False
        self._given_up = False  # the client takes nothing
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if not self._closed:
            text = "the model let go of the request's response sender without its final flag"
            self._link.tell_later(self._last_message("INTERNAL", text))

    def send(self, response: InferenceResponse | None, flags: int) -> None:
        """Send a response, or the bare end; it waits while the client is too far behind."""
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"send takes 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL as flags, not {flags}")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None and not final:
            raise TritonModelException("send needs a response unless the final flag is set")
        writer = TensorWriter()
        body: ResponseBody = {} if response is None else encode_response(response, self._wanted, writer)
        if not self._may_send(body):
            return
        message: StreamedResponse = {"op": "response", "key": self._key, "final": final, **body}
        with self._lock:
            if self._closed:
                raise TritonModelException("the final response of this request was sent before")
            self._closed = final
            self._link.tell(message, writer)

    def _may_send(self, body: ResponseBody) -> bool:
        """Wait for the client to take what was sent before. False where it does not: then nobody reads any more."""
        if self._window is not None and "outputs" in body and not self._given_up:
            self._given_up = not self._window.wait(sum(row[4] for row in body["outputs"]))
            if self._given_up:
                self.fail("UNAVAILABLE", "the client took no response for too long")
        return not self._given_up

    def fail(self, code: str, text: str) -> None:
        """End with an error, unless it has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._link.tell(self._last_message(code, text))

    def close(self) -> None:
        """End without a word: the server answers in its place."""
        self._closed = True

    def release(self) -> None:
        """End this execution's part of the answer: the request will be executed again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                message: Release = {"op": "release", "key": self._key}
                self._link.tell(message)

    def is_cancelled(self) -> bool:
        return request_is_cancelled(self._link, self._key)

    def _last_message(self, code: str, text: str) -> StreamedResponse:
        return {"op": "response", "key": self._key, "final": True, "error": (code, text)}


def request_is_cancelled(link: ServerLink, key: int) -> bool:
    """Ask the server whether a request is cancelled."""
    question: Cancelled = {"op": "cancelled", "key": key}
    return cast("bool", link.ask(question))


class InferenceResponseSender(ABC):
    """Answers one request."""

    @abstractmethod
    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response; `flags` is TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last one, or alone behind it."""

    @abstractmethod
    def is_cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""


class SingleResponseSender(InferenceResponseSender):
    """Answers with exactly one response. `response` is what was sent so far."""

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled = is_cancelled
        self._lock = threading.Lock()
        self._closed = False
        self._stream: ResponseStream | None = None  # once `execute` has returned
        self.response: InferenceResponse | None = None

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send takes a pb_utils.InferenceResponse, not {type(response).__name__}")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        with self._lock:
            if self._closed:
                raise TritonModelException("the final response of this request was sent before")
            if final and response is None and self.response is None:  # the words that Triton's tests look for
                raise TritonModelException("Non-decoupled model cannot send complete final before sending a response")
            if response is not None and self.response is not None:
                raise TritonModelException("a model that is not decoupled sends exactly one response for each request")
            self.response = response or self.response
            self._closed = final
            if final and self._stream is not None:
                self._stream.send(self.response, flags)

    def is_cancelled(self) -> bool:
        return self._is_cancelled()

    def executed(self, stream: ResponseStream) -> InferenceResponse | None:
        """Note that `execute` has returned: what was sent by then, or None; then it goes through the stream later."""
        with self._lock:
            if self.response is None:
                self._stream = stream
            else:
                stream.close()
            return self.response


class DecoupledResponseSender(InferenceResponseSender):
    """Answers a request of a decoupled model: any number of responses, the last one with the flag."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self._stream.send(response, flags)

    def is_cancelled(self) -> bool:
        return self._stream.is_cancelled()

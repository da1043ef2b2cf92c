"""The stream on which a model's process answers one request: any number of responses, then exactly one end."""

import threading
from typing import cast

from serving.backends.channel.messages import (
    Cancelled,
    ErrorPair,
    HandlerError,
    Release,
    ResponseBody,
    StreamedResponse,
)
from serving.backends.channel.tensors import TensorWriter
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink


class AnswerStream:
    """Every object that may still answer refers to the stream. If the last such object is deleted too
    early, the stream ends with an error.

    key: the server's number for the request. window: the limit of unread responses, or None for no limit.
    """

    def __init__(self, link: ServerLink, key: int, window: ResponseWindow | None = None) -> None:
        self._link = link
        self._key = key
        self._window = window
        self._closed = False
        self._given_up = False  # True if the client took no response for too long
        self._lock = threading.Lock()

    def __del__(self) -> None:
        if not self._closed:
            text = "the model dropped the request's response sender without the final flag"
            self._link.tell_later(self._last_message(("INTERNAL", text)))

    def send_body(self, body: ResponseBody, writer: TensorWriter, final: bool) -> None:
        """Send a response, or the end of the stream without one. Waits while too many responses are unread."""
        if not self._may_send(body):
            return
        message: StreamedResponse = {"op": "response", "key": self._key, "final": final, **body}
        with self._lock:
            if self._closed:
                raise TritonModelException("the final response of this request was sent before")
            self._closed = final
            self._link.tell(message, writer)

    def _may_send(self, body: ResponseBody) -> bool:
        """Wait until the client has taken earlier responses. Return False if the client does not take them."""
        if self._window is not None and "outputs" in body and not self._given_up:
            self._given_up = not self._window.wait(sum(row[4] for row in body["outputs"]))
            if self._given_up:
                self.fail(("UNAVAILABLE", "the client took no response for too long"))
        return not self._given_up

    def fail(self, error: ErrorPair | HandlerError) -> None:
        """End the stream with an error, unless it has ended."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._link.tell(self._last_message(error))

    def close(self) -> None:
        """End the stream without a message, because the result of the batch answers the request."""
        self._closed = True

    def release(self) -> None:
        """End the stream of this execution, because the request will be executed again."""
        with self._lock:
            if not self._closed:
                self._closed = True
                message: Release = {"op": "release", "key": self._key}
                self._link.tell(message)

    def is_cancelled(self) -> bool:
        return request_is_cancelled(self._link, self._key)

    def _last_message(self, error: ErrorPair | HandlerError) -> StreamedResponse:
        return {"op": "response", "key": self._key, "final": True, "error": error}


def request_is_cancelled(link: ServerLink, key: int) -> bool:
    question: Cancelled = {"op": "cancelled", "key": key}
    return cast("bool", link.ask(question))

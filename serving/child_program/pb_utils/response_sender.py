"""pb_utils.InferenceResponseSender: answers a request instead of `execute`'s return value, from any thread.

A model that is not decoupled answers once, a decoupled model any number of times. Both kinds of models may answer after
`execute` has returned.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from serving.backends.channel.messages import ResponseBody
from serving.backends.channel.tensors import TensorWriter
from serving.child_program.link.answer_stream import AnswerStream
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.response_window import ResponseWindow
from serving.child_program.link.server_link import ServerLink
from serving.child_program.pb_utils.response import InferenceResponse, encode_response

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class ResponseStream(AnswerStream):
    """The stream of responses to one request. The request and its sender keep it alive. wanted: the requested outputs."""

    def __init__(self, link: ServerLink, key: int, wanted: Sequence[str], window: ResponseWindow | None = None) -> None:
        super().__init__(link, key, window)
        self._wanted = wanted

    def send(self, response: InferenceResponse | None, flags: int) -> None:
        """Send a response, or the end of the stream without one. Waits while too many responses are unread."""
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"send takes 0 or TRITONSERVER_RESPONSE_COMPLETE_FINAL as flags, not {flags}")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if response is None and not final:
            raise TritonModelException("send needs a response unless the final flag is set")
        writer = TensorWriter()
        body: ResponseBody = {} if response is None else encode_response(response, self._wanted, writer)
        self.send_body(body, writer, final)


class InferenceResponseSender(ABC):
    """Answers one request."""

    @abstractmethod
    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response. flags: TRITONSERVER_RESPONSE_COMPLETE_FINAL with the last response, or alone after it."""

    @abstractmethod
    def is_cancelled(self) -> bool:
        """Return whether the request is cancelled."""


class SingleResponseSender(InferenceResponseSender):
    """Answers with exactly one response. response: the response that the model has sent, or None if it has not sent one."""

    def __init__(self, is_cancelled: Callable[[], bool]) -> None:
        self._is_cancelled = is_cancelled
        self._lock = threading.Lock()
        self._closed = False
        self._stream: ResponseStream | None = None  # set when `execute` returns before the response
        self.response: InferenceResponse | None = None

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send takes a pb_utils.InferenceResponse, not {type(response).__name__}")
        final = flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        with self._lock:
            if self._closed:
                raise TritonModelException("the final response of this request was sent before")
            if final and response is None and self.response is None:  # Triton's tests expect these words
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
        """Note that `execute` has returned. Return the response if it was sent, or None if the stream must send it later."""
        with self._lock:
            if self.response is None:
                self._stream = stream
            else:
                stream.close()
            return self.response


class DecoupledResponseSender(InferenceResponseSender):
    """Answers a request of a decoupled model: any number of responses, the last one with the final flag."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        self._stream.send(response, flags)

    def is_cancelled(self) -> bool:
        return self._stream.is_cancelled()

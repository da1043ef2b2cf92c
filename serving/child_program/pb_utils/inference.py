"""Business logic scripting: inferences on other models of the same server, blocking, awaited or streamed.

Source: README of triton-inference-server/python_backend, "Business Logic Scripting".
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from enum import Enum
from functools import partial
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from serving.backends.channel.messages import Cancel, Infer
from serving.backends.channel.tensors import TensorWriter
from serving.child_program.link.errors import ErrorCode, TritonModelException
from serving.child_program.link.server_link import ReceivedAnswer, ServerLink
from serving.child_program.pb_utils.checks import whole_number
from serving.child_program.pb_utils.response import InferenceResponse, decode_response, error_response

Result = TypeVar("Result")

served_keys: contextvars.ContextVar[Sequence[int] | None] = contextvars.ContextVar("served_keys", default=None)
"""The keys of the requests that `execute` is answering, or None on a thread that the model started."""


class MemoryType(Enum):
    """Triton's TRITONSERVER_MEMORY_* for the host and for a GPU."""

    TRITONSERVER_MEMORY_CPU = 0
    TRITONSERVER_MEMORY_GPU = 2


class PreferredMemory:
    """The preferred memory for the outputs of an inference on another model."""

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        self.preferred_memory_type = MemoryType(preferred_memory_type)
        self.preferred_device_id = whole_number("preferred_device_id", preferred_device_id)


def torch_device(preferred: PreferredMemory | None) -> str:
    """Return torch's name for the GPU to copy outputs to; "" for the host. Raises TritonModelException without that GPU."""
    if preferred is None or preferred.preferred_memory_type is MemoryType.TRITONSERVER_MEMORY_CPU:
        return ""
    try:
        import torch

        gpus = torch.cuda.device_count()
    except ImportError:
        gpus = 0
    number = preferred.preferred_device_id
    if number >= gpus:
        raise TritonModelException(f"preferred_memory asks for GPU {number}, but torch shows {gpus} GPUs to this model")
    return f"cuda:{number}"


class Question(NamedTuple):
    """An inference on another model: the link, the message, the writer of inputs, and the GPU for outputs ("": the host)."""

    link: ServerLink
    message: Infer
    writer: TensorWriter
    device: str

    def decode(self, answer: ReceivedAnswer) -> InferenceResponse:
        return decode_response(answer.message, answer.memory, self.device)


class ResponseIterator:
    """The responses of one inference as they arrive, for `for` or `async for`. The last response may be empty, as in Triton.
    When all responses were read, iteration can start again."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._answers: SimpleQueue[ReceivedAnswer] = SimpleQueue()
        self._ended = False
        self._all: list[InferenceResponse] = []
        self._next_one = 0  # the index in `_all` of the response to return next
        self.begun: Future[None] = Future()  # done when the first response has arrived
        self._id = question.link.start(question.message, self._take, question.writer)
        self.begun.add_done_callback(partial(_cancel_too, question.link, self._id))

    def __iter__(self) -> Iterator[InferenceResponse]:
        self._begin()
        return self

    def __aiter__(self) -> AsyncIterator[InferenceResponse]:
        self._begin()
        return self

    def __next__(self) -> InferenceResponse:
        response = self._next()
        if response is None:
            raise StopIteration
        return response

    async def __anext__(self) -> InferenceResponse:
        response = await asyncio.to_thread(self._next)
        if response is None:
            raise StopAsyncIteration
        return response

    def _take(self, answer: ReceivedAnswer) -> None:
        self._answers.put(answer)
        if not self.begun.done():
            _resolve(self.begun, None)

    def cancel(self) -> None:
        """Ask the other model to stop. Responses that the model still sends are kept."""
        message: Cancel = {"op": "cancel", "ask": self._id, "waits": True}
        self._question.link.tell(message)

    def _next(self) -> InferenceResponse | None:
        if not self._ended:
            answer = self._answers.get()
            self._ended = answer.message["final"]
            self._all.append(self._question.decode(answer))
        elif self._next_one == len(self._all):
            return None
        self._next_one += 1
        return self._all[self._next_one - 1]

    def _begin(self) -> None:
        """Start again with the first response if all responses were read."""
        if self._ended and self._next_one == len(self._all):
            self._next_one = 0


class _SingleResponse:
    """Waits for the one response of a model that is not decoupled."""

    def __init__(self, question: Question) -> None:
        self.future: Future[InferenceResponse] = Future()
        self._question = question
        self._responses: list[InferenceResponse] = []
        asked = question.link.start(question.message, self._take, question.writer)
        self.future.add_done_callback(partial(_cancel_too, question.link, asked))

    def _take(self, answer: ReceivedAnswer) -> None:
        if "outputs" in answer.message or "error" in answer.message:
            self._responses = [*self._responses[:1], self._question.decode(answer)]
        if not answer.message["final"]:
            return
        if len(self._responses) != 1:
            text = (
                f"the model gave {'more than one response' if self._responses else 'no response'}: use decoupled=True"
            )
            self._responses = [error_response(ErrorCode.INVALID_ARG.value, text)]
        _resolve(self.future, self._responses[0])


def infer(question: Question, decoupled: bool) -> InferenceResponse | ResponseIterator:
    """Send the request and wait for the response. If `decoupled`, return an iterator of the responses immediately."""
    return ResponseIterator(question) if decoupled else _SingleResponse(question).future.result()


def infer_async(question: Question, decoupled: bool) -> Coroutine[None, None, InferenceResponse | ResponseIterator]:
    """Send the request, and return an awaitable of the response or, if `decoupled`, of the iterator.

    The request is sent immediately, so that several requests run in parallel even if they are awaited one after the other. The
    iterator is returned when its first response has arrived, so that reading this response does not block the event loop.
    """
    return _first(ResponseIterator(question)) if decoupled else _wait(_SingleResponse(question).future)


async def _first(iterator: ResponseIterator) -> ResponseIterator:
    await asyncio.wrap_future(iterator.begun)
    return iterator


async def _wait(future: "Future[InferenceResponse]") -> InferenceResponse:
    return await asyncio.wrap_future(future)


def _cancel_too(link: ServerLink, asked: int, future: "Future[None] | Future[InferenceResponse]") -> None:
    """Cancel an inference if the future of its answer was cancelled."""
    if future.cancelled():
        message: Cancel = {"op": "cancel", "ask": asked, "waits": False}
        link.tell(message)


def _resolve(future: "Future[Result]", result: Result) -> None:
    try:
        future.set_result(result)
    except InvalidStateError:  # it was cancelled
        pass

"""Business logic scripting: inferences on other models of the same server, blocking, awaited or streamed."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future, InvalidStateError
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from serving.backends.channel.channel import Message
from serving.backends.channel.tensors import Writer
from serving.child_program.pb_utils.errors import ErrorCode, TritonError, TritonModelException
from serving.child_program.pb_utils.memory import torch_device
from serving.child_program.pb_utils.tensor import Tensor
from serving.child_program.server_link import Answer, ServerLink, server

if TYPE_CHECKING:
    from serving.child_program.pb_utils.messages import InferenceRequest, InferenceResponse

# The keys of the requests that `execute` is answering here; None in a thread of the model's own.
serving_now: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar("serving_now", default=None)


class ResponseIterator:
    """The responses of one inference as they come, for `for` or `async for`; the last one may be empty, as in Triton. Once
    all have come they can be iterated again."""

    def __init__(self, link: ServerLink, message: Message, writer: Writer, device: str) -> None:
        self._link = link
        self._device = device
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._ended = False
        self._all: list[InferenceResponse] = []
        self._next_one = 0  # of them, once all have come
        self.begun: Future[None] = Future()  # done with the first response
        self._id = link.start(message, self._take, writer)
        self.begun.add_done_callback(partial(_cancel_too, link, self._id))

    def __iter__(self) -> Iterator["InferenceResponse"]:
        self._begin()
        return self

    def __aiter__(self) -> AsyncIterator["InferenceResponse"]:
        self._begin()
        return self

    def __next__(self) -> "InferenceResponse":
        response = self._next()
        if response is None:
            raise StopIteration
        return response

    async def __anext__(self) -> "InferenceResponse":
        response = await asyncio.to_thread(self._next)
        if response is None:
            raise StopAsyncIteration
        return response

    def _take(self, answer: Answer) -> None:
        self._answers.put(answer)
        if not self.begun.done():
            _settle(self.begun, None)

    def cancel(self) -> None:
        """The other model may notice and stop; what it still sends comes all the same."""
        self._link.tell({"op": "cancel", "ask": self._id, "waits": True})

    def _next(self) -> "InferenceResponse | None":
        if not self._ended:
            answer = self._answers.get()
            self._ended = answer.message["final"]
            self._all.append(response_of(answer, self._device))
        elif self._next_one == len(self._all):
            return None
        self._next_one += 1
        return self._all[self._next_one - 1]

    def _begin(self) -> None:
        """Again from the first response, where the last one was given."""
        if self._ended and self._next_one == len(self._all):
            self._next_one = 0


class _Single:
    """Waits for the one response of a model that is not decoupled."""

    def __init__(self, link: ServerLink, message: Message, writer: Writer, device: str) -> None:
        self.future: Future[InferenceResponse] = Future()
        self._device = device
        self._responses: list[InferenceResponse] = []
        self.future.add_done_callback(partial(_cancel_too, link, link.start(message, self._take, writer)))

    def _take(self, answer: Answer) -> None:
        if "outputs" in answer.message or "error" in answer.message:
            self._responses = [*self._responses[:1], response_of(answer, self._device)]
        if not answer.message["final"]:
            return
        if len(self._responses) != 1:
            text = (
                f"the model gave {'more than one response' if self._responses else 'no response'}: use decoupled=True"
            )
            self._responses = [_failed(ErrorCode.INVALID_ARG.value, text)]
        _settle(self.future, self._responses[0])


def infer(request: "InferenceRequest", decoupled: bool) -> "InferenceResponse | ResponseIterator":
    question = _question(request)
    return ResponseIterator(*question) if decoupled else _Single(*question).future.result()


def infer_async(
    request: "InferenceRequest", decoupled: bool
) -> Coroutine[Any, Any, "InferenceResponse | ResponseIterator"]:
    """The request is sent at once, so that several that are awaited one after the other run side by side. An iterator comes
    with its first response: to ask that for it does not hold up the loop."""
    question = _question(request)
    return _first(ResponseIterator(*question)) if decoupled else _wait(_Single(*question).future)


async def _first(iterator: ResponseIterator) -> ResponseIterator:
    await asyncio.wrap_future(iterator.begun)
    return iterator


async def _wait(future: "Future[InferenceResponse]") -> "InferenceResponse":
    return await asyncio.wrap_future(future)


def _cancel_too(link: ServerLink, identifier: int, future: "Future[Any]") -> None:
    """Where whoever awaited the answer does so no more."""
    if future.cancelled():
        link.tell({"op": "cancel", "ask": identifier, "waits": False})


def _settle(future: "Future[Any]", result: Any) -> None:
    try:
        future.set_result(result)
    except InvalidStateError:  # cancelled: nobody waits
        pass


def _question(request: "InferenceRequest") -> tuple[ServerLink, Message, Writer, str]:
    """What to ask, and where the outputs are wanted."""
    link = server()
    if not request.model_name():
        raise TritonModelException("an inference on another model needs its model_name")
    writer = Writer()
    message: Message = {
        "op": "infer",
        "model": request.model_name(),
        "version": "" if request._model_version < 1 else str(request._model_version),
        "request_id": request.request_id(),
        "inputs": [writer.add(tensor.name(), *tensor._host()) for tensor in request.inputs()],
        "requested": request.requested_output_names(),
        "parameters": request._parameters,
        "priority": request.priority(),
        "timeout": request.timeout(),
        "sequence": request.correlation_id(),
        "flags": request.flags(),
        "trace": request.trace()._key,
        "for": serving_now.get(),
    }
    return link, message, writer, torch_device(request._preferred_memory)


def response_of(answer: Answer, device: str) -> "InferenceResponse":
    """Its outputs on a GPU where `device` names one. Empty for the bare end of a stream."""
    from serving.child_program.pb_utils.messages import InferenceResponse

    message = answer.message
    if "error" in message:
        return _failed(*message["error"])
    tensors = [
        Tensor._from_memory(name, kind, shape, answer.memory, *place)
        for name, kind, shape, *place in message.get("outputs", ())
    ]
    if device:
        tensors = [tensor._copied_to(device) for tensor in tensors]
    return InferenceResponse(tensors, parameters=message.get("parameters"))


def _failed(code: str, text: str) -> "InferenceResponse":
    from serving.child_program.pb_utils.messages import InferenceResponse

    return InferenceResponse([], TritonError(text, ErrorCode(code)))

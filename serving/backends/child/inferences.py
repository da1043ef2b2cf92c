"""The inferences on other models that one child has under way (business logic scripting), and for whom it makes them.

An inference is cancelled when the last request that it is made for is. One that ends a sequence is carried out all the same:
it frees what the other model holds.
"""

from collections.abc import Callable, Sequence
from typing import Any

from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.child.messages import Answer, quietly, request_of
from serving.core.errors import safely, unavailable, unexpected
from serving.core.request import InferenceRequest
from serving.resources.runtime import Runtime

MAX_ASKED = 1000  # that one child may have under way


class ChildInferences:
    """`answer(identifier, answer, final)` hands an answer to the child; any thread may call it."""

    def __init__(self, answer: Callable[[int, Answer, bool], None]) -> None:
        self._answer = answer
        self._asked: dict[int, InferenceRequest] = {}
        self._ended = False

    # -- on the thread that reads the child's calls ----------------------------------------------------------------
    def ask(
        self,
        runtime: Runtime,
        message: Message,
        memory: Any,
        made_for: Sequence[InferenceRequest],
        traced_by: InferenceRequest | None,
    ) -> None:
        """Queue what the message describes. `traced_by` is the request under whose trace it belongs."""
        if len(self._asked) >= MAX_ASKED:
            raise unavailable(f"a model may have {MAX_ASKED} inferences on other models under way, not more")
        identifier = message["id"]
        if not isinstance(identifier, int) or identifier in self._asked:
            raise ProtocolError("a question's id is not a new number")
        request = request_of(message, memory, lambda answer, final: self._answered(identifier, answer, final))
        self._asked[identifier] = request
        quietly(runtime.loop.call_soon_threadsafe, self._submit, runtime, request, made_for, traced_by)

    def cancel(self, runtime: Runtime, identifier: int, waits: bool) -> None:
        """`waits`: the child takes what the other model still answers."""
        request = self._asked.get(identifier)
        if request is not None:
            quietly(runtime.loop.call_soon_threadsafe, request.ask_to_stop if waits else request.cancel)

    def close(self, runtime: Runtime) -> None:
        """The child has ended."""
        self._ended = True
        for asked in list(self._asked.values()):
            quietly(runtime.loop.call_soon_threadsafe, asked.cancel)

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def _submit(
        self,
        runtime: Runtime,
        request: InferenceRequest,
        made_for: Sequence[InferenceRequest],
        traced_by: InferenceRequest | None,
    ) -> None:
        if self._ended:
            return
        if traced_by is not None:
            for observer in traced_by.observers:
                safely("observing a step", observer.step, request)
        try:
            runtime.infer(request)
        except Exception as error:
            request.respond(unexpected(error, f"sending a request to '{request.model_name[:80]}'"))
        else:
            if made_for and not request.sequence_end:
                safely("following the request that a model serves", _cancel_with, made_for, request)

    def _answered(self, identifier: int, answer: Answer, final: bool) -> None:
        if final:
            self._asked.pop(identifier, None)
        self._answer(identifier, answer, final)


# -- cancelling with the last of several ---------------------------------------------------------------------------------
class _Needed:
    """An inference and those of the requests behind it that still wait."""

    __slots__ = ("by", "request")

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request
        self.by: set[_CancelToo] = set()

    def given_up(self, by: "_CancelToo") -> None:
        self.by.discard(by)
        if not self.by:
            self.request.cancel()


class _CancelToo:
    """`on_cancel` of a request for which inferences are made: those that nobody else waits for are cancelled with it."""

    __slots__ = ("before", "inferences")

    def __init__(self, before: Callable[[InferenceRequest], None] | None) -> None:
        self.before = before
        self.inferences: set[_Needed] = set()

    def __call__(self, request: InferenceRequest) -> None:
        if self.before is not None:
            self.before(request)
        for inference in list(self.inferences):
            inference.given_up(self)


def _cancel_with(made_for: Sequence[InferenceRequest], request: InferenceRequest) -> None:
    """Cancel `request` once all that it is made for are finished without its answer: they are open, so by cancelling."""
    needed = _Needed(request)
    for one in made_for:
        if one.finished:  # cancelled already, or only there to fill a batch
            continue
        if not isinstance(one.on_cancel, _CancelToo):
            one.on_cancel = _CancelToo(one.on_cancel)
        one.on_cancel.inferences.add(needed)
        needed.by.add(one.on_cancel)
    if not needed.by:
        request.cancel()
        return
    deliver = request.on_response

    def answered(answer: Any, final: bool) -> None:
        if final:
            for hook in needed.by:
                hook.inferences.discard(needed)
        deliver(answer, final)

    request.on_response = answered

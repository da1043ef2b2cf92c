"""The inferences on other models that one child has under way (business logic scripting), and for whom it makes them.

An inference is cancelled when the last request that it is made for is. One that ends a sequence is carried out all the same:
it frees what the other model holds.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import Unchecked as Message
from serving.backends.child.messages import Answer, quietly, request_of
from serving.core.errors import safely, unavailable, unexpected
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.resources.runtime import Runtime

MAX_ASKED = 1000  # that one child may have under way


class _Inference:
    """An inference under way, and those of the requests that it is made for which still wait."""

    __slots__ = ("request", "waits_for")

    def __init__(self, request: InFlightRequest) -> None:
        self.request = request
        self.waits_for: dict[InFlightRequest, Callable[[], None]] = {}

    def cancel_with(self, made_for: Sequence[InFlightRequest]) -> None:
        """Cancel the inference once all that it is made for are cancelled: as long as it is open, they end no other way."""
        for one in made_for:
            if not one.finished:  # not cancelled already, nor only there to fill a batch
                self.waits_for[one] = listener = partial(self._given_up, one)
                one.on_cancel(listener)
        if not self.waits_for:
            self.request.cancel()

    def ended(self) -> None:
        """It has its last answer: nobody's end concerns it any more."""
        waits_for, self.waits_for = self.waits_for, {}
        for one, listener in waits_for.items():
            one.forget_on_cancel(listener)

    def _given_up(self, one: InFlightRequest) -> None:
        if self.waits_for.pop(one, None) is not None and not self.waits_for:
            self.request.cancel()


class ChildInferences:
    """`answer(identifier, answer, final)` hands an answer to the child; any thread may call it."""

    def __init__(self, answer: Callable[[int, Answer, bool], None]) -> None:
        self._answer = answer
        self._asked: dict[int, _Inference] = {}
        self._ended = False

    # -- on the thread that reads the child's calls ----------------------------------------------------------------
    def ask(
        self,
        runtime: Runtime,
        message: Message,
        memory: Any,
        made_for: Sequence[InFlightRequest],
        traced_by: InFlightRequest | None,
    ) -> None:
        """Queue what the message describes. `traced_by` is the request under whose trace it belongs."""
        if len(self._asked) >= MAX_ASKED:
            raise unavailable(f"a model may have {MAX_ASKED} inferences on other models under way, not more")
        identifier = message["id"]
        if not isinstance(identifier, int) or identifier in self._asked:
            raise ProtocolError("a question's id is not a new number")
        responder = CallbackResponder(lambda answer, final: self._answered(identifier, answer, final))
        inference = _Inference(InFlightRequest(request_of(message, memory), responder))
        self._asked[identifier] = inference
        quietly(runtime.loop.call_soon_threadsafe, self._submit, runtime, inference, made_for, traced_by)

    def cancel(self, runtime: Runtime, identifier: int, waits: bool) -> None:
        """`waits`: the child takes what the other model still answers."""
        inference = self._asked.get(identifier)
        if inference is not None:
            request = inference.request
            quietly(runtime.loop.call_soon_threadsafe, request.ask_to_stop if waits else request.cancel)

    def close(self, runtime: Runtime) -> None:
        """The child has ended."""
        self._ended = True
        for inference in list(self._asked.values()):
            quietly(runtime.loop.call_soon_threadsafe, inference.request.cancel)

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def _submit(
        self,
        runtime: Runtime,
        inference: _Inference,
        made_for: Sequence[InFlightRequest],
        traced_by: InFlightRequest | None,
    ) -> None:
        if self._ended:
            return
        request = inference.request
        if traced_by is not None:
            for observer in traced_by.observers:
                safely("observing a step", observer.step, request)
        try:
            runtime.infer(request)
        except Exception as error:
            request.respond(unexpected(error, f"sending a request to '{request.asked.model_name[:80]}'"))
        else:
            if made_for and not request.asked.sequence.end and not request.finished:
                safely("following the request that a model serves", inference.cancel_with, made_for)

    def _answered(self, identifier: int, answer: Answer, final: bool) -> None:
        if final:
            inference = self._asked.pop(identifier, None)
            if inference is not None:
                inference.ended()
        self._answer(identifier, answer, final)

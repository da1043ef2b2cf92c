"""Executes the inferences of a model's process on other models (business logic scripting).

An inference is cancelled when all requests that need it are cancelled. An inference that ends a sequence is not
cancelled, because it frees the state of the other model. Triton's class of this name does the same in python_backend.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.channel import ProtocolError
from serving.backends.channel.messages import Cancel, Infer
from serving.backends.channel.tensors import Memory
from serving.backends.child.codec import Answer, Handler, decode_request
from serving.backends.child.open_requests import OpenRequests, quietly
from serving.core.client_headers import pass_on
from serving.core.errors import safely, unavailable, unexpected
from serving.core.in_flight import CallbackResponder, InFlightRequest
from serving.resources.runtime import Runtime

MAX_INFERENCES = 1000  # the most running inferences of one child


class RequestExecutor:
    """Executes the inferences of one child. Its `handlers` are called on the thread that reads the child's link.

    requests: the child's requests, which need the inferences. answer: sends the child an answer. Parameters: the id of the
    question, the answer, and whether it is the last one. Any thread may call `answer`.
    """

    def __init__(self, spec: ModelSpec, requests: OpenRequests, answer: Callable[[int, Answer, bool], None]) -> None:
        self._spec = spec
        self._requests = requests
        self._answer = answer
        self._asked: dict[int, _Inference] = {}
        self._ended = False
        self.handlers: Mapping[str, Handler] = {"infer": self._infer, "cancel": self._cancel}

    def close(self) -> None:
        """Cancel the running inferences, because the child has ended. Called on the thread that reads the child's link."""
        self._ended = True
        runtime = self._spec.runtime
        if runtime is not None:
            for inference in list(self._asked.values()):
                quietly(runtime.loop.call_soon_threadsafe, inference.request.cancel)

    # -- on the thread that reads the child's link -----------------------------------------------------------------
    def _infer(self, message: Infer, memory: Memory) -> None:
        runtime = self._spec.require_runtime()
        traced_by = self._requests.find(message["trace"])
        made_for = self._requests.find_all(message["made_for"])
        if len(self._asked) >= MAX_INFERENCES:
            raise unavailable(f"a model may have at most {MAX_INFERENCES} inferences on other models under way")
        identifier = message["id"]
        if not isinstance(identifier, int) or identifier in self._asked:
            raise ProtocolError("a question's id is not a new number")
        responder = CallbackResponder(partial(self._answered, identifier))
        inference = _Inference(InFlightRequest(decode_request(message, memory), responder))
        self._asked[identifier] = inference
        quietly(runtime.loop.call_soon_threadsafe, self._submit, runtime, inference, made_for, traced_by)

    def _cancel(self, message: Cancel, memory: Memory) -> None:
        runtime = self._spec.require_runtime()
        inference = self._asked.get(message["ask"])
        if inference is not None:
            request = inference.request
            cancel = request.ask_to_stop if message["waits"] is True else request.cancel
            quietly(runtime.loop.call_soon_threadsafe, cancel)

    # -- on the loop's thread --------------------------------------------------------------------------------------
    def _submit(
        self,
        runtime: Runtime,
        inference: "_Inference",
        made_for: Sequence[InFlightRequest],
        traced_by: InFlightRequest | None,
    ) -> None:
        """Queue an inference with its model. traced_by: the request whose trace the inference belongs to."""
        if self._ended:
            return
        request = inference.request
        if runtime.limiter is not None:
            runtime.limiter.note_caller(self._spec.name)
        if traced_by is not None:
            for observer in traced_by.observers:
                safely("observing a step", observer.step, request)
        if made_for:
            request.made_for(*made_for)
            safely("passing on headers of clients", pass_on, made_for, request)
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
                inference.forget_requests()
        self._answer(identifier, answer, final)


class _Inference:
    """A running inference, and the requests that still wait for it."""

    __slots__ = ("request", "waits_for")

    def __init__(self, request: InFlightRequest) -> None:
        self.request = request
        self.waits_for: dict[InFlightRequest, Callable[[], None]] = {}

    def cancel_with(self, made_for: Sequence[InFlightRequest]) -> None:
        """Cancel the inference when all requests that need it are cancelled. Before the inference ends, these requests can only
        end by being cancelled."""
        for one in made_for:
            if not one.finished:  # a finished request was cancelled, or only fills a slot of a batch
                self.waits_for[one] = listener = partial(self._given_up, one)
                one.on_cancel(listener)
        if not self.waits_for:
            self.request.cancel()

    def forget_requests(self) -> None:
        """Forget the requests, because the inference has its last answer."""
        waits_for, self.waits_for = self.waits_for, {}
        for one, listener in waits_for.items():
            one.forget_on_cancel(listener)

    def _given_up(self, one: InFlightRequest) -> None:
        if self.waits_for.pop(one, None) is not None and not self.waits_for:
            self.request.cancel()

"""A request inside the server, from the frontend or model that sends it to the instance that executes it.

InFlightRequest     has the objects below, and the fields that a scheduler needs
    InferenceRequest    the request as it was sent
    Responder           takes the answers; the sender of the request provides it
    Observer            observes the request, for a log or a trace
    RequestOwner        the model that has accepted the request, or a frontend worker's link to the core
    ResponseStream      a decoupled model's progress with the request

    new -> accepted by a model -> handed to an instance -> finished
     |              |                      |                  ^
     +- refused ----+-------- cancelled ---+------------------+

A request is accepted twice if its model must be loaded first: by the sleeping model, then by the loaded one. Answers after
the final one are dropped.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from mypy_extensions import mypyc_attr

from serving.core.datatypes import Tensor
from serving.core.errors import ServingError, cancelled, safely, unexpected
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response import Answer
from serving.core.response_flow import ResponseFlow

# The times when a frontend began to receive a request and had received all of it (monotonic ns); None without a trace.
ReceiveTimes = tuple[int, int] | None


class Execution(Protocol):
    """One execution of a model instance, such as a Batch. size: the rows of all its requests. inline: the loop's thread
    executed it. instance: the label of the instance. The times are when its phases began (monotonic ns), or 0 for a phase that
    the backend does not report."""

    size: int
    inline: bool
    instance: str
    started_ns: int
    input_done_ns: int
    infer_done_ns: int
    ended_ns: int


class Observer(Protocol):
    """Observes one request, for a log or a trace. Called on the event loop's thread; it must not keep the request."""

    def executed(self, request: "InFlightRequest", execution: Execution) -> None:
        """The request's batch has run; the last answer may come before or after this call. Not called for an ensemble, nor for
        an answer from the response cache."""

    def step(self, child: "InFlightRequest") -> None:
        """An ensemble, or a model that calls others, is about to send the request `child` to another model."""

    def context(self) -> str:
        """Return the trace context for the model's own spans, as a JSON object; "" without a trace. Called on any thread."""

    def answered(self, request: "InFlightRequest", answer: Answer, final: bool) -> None:
        """The request is about to be answered, or was refused before a model accepted it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class QuietObserver:
    """An observer whose methods do nothing. Subclasses override the methods that they need."""

    __slots__ = ()

    def executed(self, request: "InFlightRequest", execution: Execution) -> None:
        pass

    def step(self, child: "InFlightRequest") -> None:
        pass

    def context(self) -> str:
        return ""

    def answered(self, request: "InFlightRequest", answer: Answer, final: bool) -> None:
        pass


# Every mirrored request has this observer, so that a check for observers finds mirrored requests too.
_MIRRORED = QuietObserver()


class SendTrace(Protocol):
    """Records when a frontend sends the answers of a traced request. Called on the event loop's thread."""

    def sending(self) -> None:
        """An answer is encoded and is now being sent."""

    def sent(self, waiting: Callable[[], bool]) -> None:
        """The last answer has been handed over. waiting: returns whether a part of it still waits for the client to read."""


class Responder(Protocol):
    """Takes the answers of a request. The sender of the request provides it.

    flow: the limit that makes a decoupled model wait while the client does not read, or None without a limit.
    """

    @property
    def flow(self) -> ResponseFlow | None: ...

    def on_response(self, answer: Answer, final: bool, /) -> None:
        """Take an answer, on the event loop's thread. Only the last call has final=True. Only decoupled models cause several
        calls."""


class CallbackResponder:
    """Hands the answers to a function: `callback(answer, final)`."""

    __slots__ = ("_callback", "flow")

    def __init__(self, callback: Callable[[Answer, bool], None], flow: ResponseFlow | None = None) -> None:
        self._callback = callback
        self.flow = flow

    def on_response(self, answer: Answer, final: bool) -> None:
        self._callback(answer, final)


class _NoResponder:
    """Drops the answers, because no client waits for them."""

    __slots__ = ()
    flow: ResponseFlow | None = None

    def on_response(self, answer: Answer, final: bool) -> None:
        pass


_NO_RESPONDER = _NoResponder()


class RequestOwner(Protocol):
    """The object that has accepted a request and is responsible for it until it ends. Most owners are models."""

    def request_cancelled(self, request: "InFlightRequest") -> None:
        """The client of this request has gone: stop working on it."""

    def request_ended(self, request: "InFlightRequest") -> None:
        """The request gets its last answer, or ends without an answer, and no longer belongs to this owner."""


class ResponseStream:
    """A decoupled model's progress with one request.

    responses: how many were sent. from_ns: when the model began to compute the next response. executing: its batch runs.
    """

    __slots__ = ("executing", "from_ns", "responses")

    def __init__(self, from_ns: int) -> None:
        self.responses = 0
        self.from_ns = from_ns
        self.executing = False

    def begin(self, now_ns: int) -> None:
        self.executing, self.from_ns = True, now_ns


# Threads of instances and of models' processes add and remove listeners; the loop's thread calls them.
_listeners_lock = threading.Lock()
_CALLED: list[Callable[[], None]] = []  # replaces the listeners of a cancelled request


class InFlightRequest:
    """A request inside the server; see the module's docstring.

    asked: the request as it was sent. responder: takes its answers. observers: log or trace it.
    trace: the object that records when the frontend sends the answers, or None without a trace.
    inputs, requested_outputs, sequence: as in `asked`, until a scheduler adds controls and states for the model.
    batch_size: the number of its rows; 1 if the model does not batch. batch_key: requests of unequal keys never share a batch.
    arrival_ns, queued_ns: when it was decoded and when a model accepted it (monotonic ns).
    origin: a number that is equal in all requests that models make for one client request; 0 for the client's request.
    mirrored: a shadow sent it to compare answers, or a model made it for a mirrored request. No rollout counts it.
    stream: the progress of a decoupled model with the request, or None for other models.
    started: an instance got it. cancelled: its client has gone. finished: it got its last answer.
    """

    __slots__ = (
        "_cancel_listeners",
        "_owner",
        "arrival_ns",
        "asked",
        "batch_key",
        "batch_size",
        "cancelled",
        "finished",
        "inputs",
        "mirrored",
        "observers",
        "origin",
        "queued_ns",
        "requested_outputs",
        "responder",
        "sequence",
        "started",
        "stream",
        "trace",
    )

    def __init__(self, asked: InferenceRequest, responder: Responder, observers: tuple[Observer, ...] = ()) -> None:
        self.asked = asked
        self.responder = responder
        self.observers = observers
        self.trace: SendTrace | None = None
        self.inputs: dict[str, Tensor] = asked.inputs
        self.requested_outputs: tuple[str, ...] = asked.requested_outputs
        self.sequence: SequencePosition = asked.sequence
        self.batch_size = 1
        self.batch_key: object = None
        self.arrival_ns = time.monotonic_ns()
        self.queued_ns = 0
        self.origin = 0
        self.stream: ResponseStream | None = None
        self.started = self.cancelled = self.finished = self.mirrored = False
        self._owner: RequestOwner | None = None
        self._cancel_listeners: list[Callable[[], None]] | None = None

    @classmethod
    def unanswered(cls, asked: InferenceRequest) -> "InFlightRequest":
        """Return a request whose answers are dropped, because it only warms up a model or fills a batch."""
        return cls(asked, _NO_RESPONDER)

    # -- observers -------------------------------------------------------------------------------------------------
    def observe(self, observer: Observer) -> None:
        self.observers = (*self.observers, observer)

    def trace_sending(self, trace: SendTrace) -> None:
        """Let `trace` record when the frontend sends an answer."""
        self.trace = trace

    def made_for(self, other: "InFlightRequest", *more: "InFlightRequest") -> None:
        """Note that a model makes this request for `other`. In a rollout, one arm answers all requests of one origin.

        more: the other requests of the batch, if the model makes this request for several of them."""
        self.origin = other.origin or other.arrival_ns
        if other.mirrored and all(one.mirrored for one in more):
            self.mirror()

    def mirror(self) -> None:
        """Mark the request as one that a shadow sends to compare answers."""
        self.mirrored = True
        self.observe(_MIRRORED)

    # -- with a model ----------------------------------------------------------------------------------------------
    def accept(self, owner: RequestOwner, queued_ns: int = 0) -> None:
        """Make `owner` the owner of this request. The owner is called when the request is cancelled and when it ends.

        queued_ns: when the request began to wait for an instance; 0 if the model has to be loaded first."""
        self._owner = owner
        self.queued_ns = queued_ns

    def give_back(self) -> bool:
        """Take the request from its owner, and return whether it had an owner. The owner gets no further calls."""
        owner, self._owner = self._owner, None
        return owner is not None

    def reset(self) -> None:
        """Take the request from its owner and restore the fields that the owner set, so that another model can accept it."""
        asked = self.asked
        self.inputs, self.requested_outputs, self.sequence = asked.inputs, asked.requested_outputs, asked.sequence
        self.batch_size, self.batch_key, self.stream = 1, None, None
        self.give_back()

    def submit_to(self, submit: "Callable[[InFlightRequest], None]") -> None:
        """Submit the request to another model. If that model refuses the request, answer it with the error."""
        try:
            submit(self)
        except Exception as error:
            self.respond(unexpected(error, "handing on a request"))

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the request is cancelled, or immediately if the request has ended. Callable on any thread."""
        with _listeners_lock:
            over = self.finished or self._cancel_listeners is _CALLED
            if not over:
                self._cancel_listeners = [*(self._cancel_listeners or ()), listener]
        if over:
            listener()

    def forget_on_cancel(self, listener: Callable[[], None]) -> None:
        """Undo `on_cancel`. Callable on any thread."""
        with _listeners_lock:
            if self._cancel_listeners:
                self._cancel_listeners = [one for one in self._cancel_listeners if one != listener]

    # -- answers ---------------------------------------------------------------------------------------------------
    def respond(self, answer: Answer, final: bool = True) -> None:
        """Give the responder an answer, on the loop's thread. Answers after the final one are dropped, such as a late answer to
        a cancelled request. Never raises. If the responder fails to take an answer, it gets an error instead."""
        if self.finished:
            return
        if final:
            self.finished = True
            owner = self._owner
            if owner is not None:
                self._owner = None
                owner.request_ended(self)
        for observer in self.observers:
            safely("observing an answer", observer.answered, self, answer, final)
        try:
            self.responder.on_response(answer, final)
        except Exception as error:
            failure = unexpected(error, "handing over a response")
            if not final:
                self._stop_model()
                self._end()
            safely("handing over an error", self.responder.on_response, failure, True)

    def refuse(self, error: ServingError) -> None:
        """End the request without an answer, because its sender gets an exception. The observers get the error."""
        self._end()
        for observer in self.observers:
            safely("observing a refusal", observer.answered, self, error, True)

    def cancel(self) -> None:
        """End the request because its client has gone. Other requests of its batch continue."""
        if self.finished or self.cancelled:
            return
        self._stop_model()
        self.respond(cancelled())

    def end_early(self) -> None:
        """End the request: its sender needs no further response. The model stops. The request does not count as failed."""
        if not self.finished and not self.cancelled:
            self._stop_model()
            self.respond(None)

    def ask_to_stop(self) -> None:
        """Cancel the request. If an instance executes the request, only set `cancelled`, which the model may check, and keep
        taking answers."""
        if self.started and not self.finished:
            self.cancelled = True
        else:
            self.cancel()

    def _stop_model(self) -> None:
        self.cancelled = True
        with _listeners_lock:
            listeners, self._cancel_listeners = self._cancel_listeners, _CALLED
        for listener in listeners or ():
            safely("cancelling the work for a request", listener)
        if self._owner is not None:
            safely("cancelling a request", self._owner.request_cancelled, self)

    def _end(self) -> None:
        self.finished = True
        owner = self._owner
        if owner is not None:
            self._owner = None
            owner.request_ended(self)

"""A request on its way through the server, from the frontend (or the model) that asks to the instance that executes it.

InFlightRequest     travels: refers to those below, and holds what the scheduler needs
    InferenceRequest    what was asked
    Responder           how to answer: made by whoever asks
    Observer            who follows it, for a log or a trace
    RequestOwner        who has accepted it: a model, or in a frontend worker its link to the core
    ResponseStream      how far a decoupled model has come with it

    new -> accepted by a model -> handed to an instance -> finished
     |              |                      |                  ^
     +- refused ----+-------- cancelled ---+------------------+

A request may be accepted twice: a model that has to be loaded first hands it on. Whatever is answered after the end is dropped.
"""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from serving.core.datatypes import Tensor
from serving.core.errors import ServingError, cancelled, safely, unexpected
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response import Answer
from serving.core.response_flow import ResponseFlow

# When a frontend began to receive a request, and when it had all of it (monotonic ns); None where nobody traces.
ReceiveTimes = tuple[int, int] | None


class Execution(Protocol):
    """One execution of a model instance: its rows over all requests, whether the loop's own thread executed it, and when its
    phases began (monotonic ns; 0 for a phase that the backend does not tell apart). A Batch is one."""

    size: int
    inline: bool
    started_ns: int
    input_done_ns: int
    infer_done_ns: int
    ended_ns: int


class Observer(Protocol):
    """Follows one request, for a log or a trace; called on the event loop's thread. It must not hold the request."""

    def executed(self, request: "InFlightRequest", execution: Execution) -> None:
        """The request's batch has run; the last answer may come before or after that. Not called for an ensemble, nor where
        the response cache answers."""

    def step(self, child: "InFlightRequest") -> None:
        """An ensemble, or a model that calls others, is about to send `child` to another model."""

    def context(self) -> str:
        """Return, for the model, where its own spans belong, as a JSON object; "" where there is nothing to pass on. Called
        on any thread."""

    def answered(self, request: "InFlightRequest", answer: Answer, final: bool) -> None:
        """The request is about to be answered, or was refused at once."""


class SendTrace(Protocol):
    """What a frontend tells the trace of its request, on the event loop's thread."""

    def sending(self) -> None:
        """An answer is encoded and goes out now."""

    def sent(self, waiting: Callable[[], bool]) -> None:
        """The last answer has been handed over; `waiting` says whether the client has still to take some of it."""


class Responder(Protocol):
    """How a request is answered: made by whoever asks.

    flow: holds back a decoupled model while the client does not read; None where nobody does.
    """

    @property
    def flow(self) -> ResponseFlow | None: ...

    def on_response(self, answer: Answer, final: bool, /) -> None:
        """Take an answer, on the event loop's thread. Exactly one call has final=True; all others (of decoupled models) come
        before it."""


class CallbackResponder:
    """Hands the answers to a function: `callback(answer, final)`."""

    __slots__ = ("_callback", "flow")

    def __init__(self, callback: Callable[[Answer, bool], None], flow: ResponseFlow | None = None) -> None:
        self._callback = callback
        self.flow = flow

    def on_response(self, answer: Answer, final: bool) -> None:
        self._callback(answer, final)


class _Unheard:
    """Nobody waits for the answers."""

    __slots__ = ()
    flow: ResponseFlow | None = None

    def on_response(self, answer: Answer, final: bool) -> None:
        pass


_UNHEARD = _Unheard()


class _Mirrored:
    """Follows what no client has asked: such a request is one that is followed, so that all others pass by without a look."""

    __slots__ = ()

    def executed(self, request: "InFlightRequest", execution: Execution) -> None:
        pass

    def step(self, child: "InFlightRequest") -> None:
        pass

    def context(self) -> str:
        return ""

    def answered(self, request: "InFlightRequest", answer: Answer, final: bool) -> None:
        pass


_MIRRORED = _Mirrored()


class RequestOwner(Protocol):
    """Who has accepted a request, a model most often, until the request ends."""

    def request_cancelled(self, request: "InFlightRequest") -> None:
        """Nobody waits for this request any more: give up what is done for it."""

    def request_ended(self, request: "InFlightRequest") -> None:
        """The request gets its last answer, or none is owed to it: it is not this owner's any more."""


class ResponseStream:
    """How far a decoupled model has come with one request.

    responses: how many it has sent. from_ns: when it began to compute the next one. executing: its batch is under way.
    """

    __slots__ = ("executing", "from_ns", "responses")

    def __init__(self, from_ns: int) -> None:
        self.responses = 0
        self.from_ns = from_ns
        self.executing = False

    def begin(self, now_ns: int) -> None:
        """The batch begins to execute."""
        self.executing, self.from_ns = True, now_ns


# Listeners come and go on the threads of instances and of models' processes, and are told on the loop's.
_listeners_lock = threading.Lock()
_TOLD: list[Callable[[], None]] = []  # in place of the listeners of a request that was cancelled


class InFlightRequest:
    """A request on its way; see the module's docstring.

    asked, responder: what was asked, and how to answer it. observers: who follows it.
    trace: the observer that the frontend has to tell what it sends, where there is one.
    inputs, requested_outputs, sequence: as the model gets them: what was asked until a scheduler adds controls and states.
    batch_size: its rows, 1 where the model does not batch. batch_key: requests of unequal keys never share a batch.
    arrival_ns, queued_ns: when it was decoded and when a model accepted it (monotonic ns).
    origin: a number that all have in common which are made for one request of a client; 0 where it is that request.
    mirrored: it is asked to compare, or made for one that is: no client has a part in it, and no rollout counts it.
    stream: of a request to a decoupled model, which may answer any number of times; else None.
    started: an instance has had it. cancelled: nobody waits for it. finished: it has had its last answer.
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
        """Return a request for whose answers nobody waits: one that warms a model up, or only fills a batch."""
        return cls(asked, _UNHEARD)

    # -- observers -------------------------------------------------------------------------------------------------
    def observe(self, observer: Observer) -> None:
        """Let one more observer follow the request."""
        self.observers = (*self.observers, observer)

    def trace_sending(self, trace: SendTrace) -> None:
        """Let the frontend tell `trace` what it sends."""
        self.trace = trace

    def made_for(self, other: "InFlightRequest", *more: "InFlightRequest") -> None:
        """Tell that this request is made for the sake of `other`, as others may be: a rollout has one arm answer them all.

        more: those of the same batch, for whose sake it is made too."""
        self.origin = other.origin or other.arrival_ns
        if other.mirrored and all(one.mirrored for one in more):
            self.mirror()

    def mirror(self) -> None:
        """It is asked to compare, and is no request of a client."""
        self.mirrored = True
        self.observe(_MIRRORED)

    # -- with a model ----------------------------------------------------------------------------------------------
    def accept(self, owner: RequestOwner, queued_ns: int = 0) -> None:
        """`owner` has the request from here on: it hears when the request is cancelled, and when it ends.

        queued_ns: since when it waits for an instance; 0 where the model has to be loaded first."""
        self._owner = owner
        self.queued_ns = queued_ns

    def give_back(self) -> bool:
        """Take the request from its owner, who refuses it or hands it on and does not hear of it again; whether it had one."""
        owner, self._owner = self._owner, None
        return owner is not None

    def begin_again(self) -> None:
        """Undo what a model set that has not begun with the request, so that another model can accept it."""
        asked = self.asked
        self.inputs, self.requested_outputs, self.sequence = asked.inputs, asked.requested_outputs, asked.sequence
        self.batch_size, self.batch_key, self.stream = 1, None, None
        self.give_back()

    def submit_to(self, submit: "Callable[[InFlightRequest], None]") -> None:
        """Submit the request to another model; where that refuses it, answer it with the refusal."""
        try:
            submit(self)
        except Exception as error:
            self.respond(unexpected(error, "handing on a request"))

    def on_cancel(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the request is cancelled, at once where it has ended already. Any thread."""
        with _listeners_lock:
            over = self.finished or self._cancel_listeners is _TOLD
            if not over:
                self._cancel_listeners = [*(self._cancel_listeners or ()), listener]
        if over:
            listener()

    def forget_on_cancel(self, listener: Callable[[], None]) -> None:
        """Undo `on_cancel`. Any thread."""
        with _listeners_lock:
            if self._cancel_listeners:
                self._cancel_listeners = [one for one in self._cancel_listeners if one != listener]

    # -- answers ---------------------------------------------------------------------------------------------------
    def respond(self, answer: Answer, final: bool = True) -> None:
        """Hand over an answer, on the loop's thread. Whatever follows the final one (a late answer to a cancelled request) is
        dropped. Here a request ends: this never raises, and an answer that cannot be handed over becomes an error."""
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
        """End the request; whoever sent it is told by an exception, and only the observers hear of it here."""
        self._end()
        for observer in self.observers:
            safely("observing a refusal", observer.answered, self, error, True)

    def cancel(self) -> None:
        """The client has gone: leave the queue, free the place in the batch; others in the batch are not disturbed."""
        if self.finished or self.cancelled:
            return
        self._stop_model()
        self.respond(cancelled())

    def end_well(self) -> None:
        """Whoever asked has all that it wants of a model that could send more: it stops, and the request has not failed."""
        if not self.finished and not self.cancelled:
            self._stop_model()
            self.respond(None)

    def ask_to_stop(self) -> None:
        """As `cancel`, but whoever asks takes what still comes: a model that is executing it may look at `cancelled` and stop,
        or go on."""
        if self.started and not self.finished:
            self.cancelled = True
        else:
            self.cancel()

    def _stop_model(self) -> None:
        self.cancelled = True
        with _listeners_lock:
            listeners, self._cancel_listeners = self._cancel_listeners, _TOLD
        for listener in listeners or ():
            safely("cancelling what is done for a request", listener)
        if self._owner is not None:
            safely("cancelling a request", self._owner.request_cancelled, self)

    def _end(self) -> None:
        self.finished = True
        owner = self._owner
        if owner is not None:
            self._owner = None
            owner.request_ended(self)

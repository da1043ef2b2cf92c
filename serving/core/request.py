"""What travels between frontends, schedulers and backends: one request, its response, its cancellation."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.typing import NDArray

from serving.core.errors import ServingError, cancelled, safely, unexpected

if TYPE_CHECKING:
    from serving.core.batch import Batch
    from serving.core.response_flow import Pace, ResponseFlow
    from serving.extensions.output_target import OutputTarget

# A numpy array on the host, or a serving.core.device_tensor.DeviceTensor on a GPU. Outputs are on the host unless the
# request has `device_outputs`; inputs may be either.
Tensor = NDArray[Any]
Parameters = dict[str, "str | int | float | bool"]


class Placed(NamedTuple):
    """Where an output lies that went to shared memory: `byte_size` bytes of a region, from `offset` on."""

    region: str
    offset: int
    byte_size: int


@dataclass(slots=True)
class InferenceResponse:
    """`outputs` holds only requested tensors, in the order of the model's configuration, batch dimension included.

    An array may be a view of a whole batch's output: serialise it before the loop runs on, never write to it.
    """

    model_name: str
    model_version: int
    id: str
    outputs: dict[str, Tensor]
    parameters: Parameters = field(default_factory=dict)
    size: int = 0  # bytes that count against the request's flow
    placed: dict[str, Placed] | None = None  # outputs in shared memory: of their arrays only dtype and shape go out


# (response or error, final). Called on the event loop's thread. Exactly one call has final=True; all others (decoupled
# models) come before it. The response is None where a decoupled model ends its stream without another response.
OnResponse = Callable[["InferenceResponse | ServingError | None", bool], None]


class Observer(Protocol):
    """Follows one request, for a log or a trace; called on the event loop's thread. It must not hold the request."""

    def executed(self, request: "InferenceRequest", batch: "Batch") -> None:
        """Its batch has run; the last answer may be before or behind that. Not called for an ensemble, nor where the response
        cache answers."""

    def step(self, child: "InferenceRequest") -> None:
        """An ensemble, or a model that calls others, is about to send this request to another model."""

    def context(self) -> str:
        """For the model: where its own spans belong, as a JSON object; "" where nothing is to be passed on. Any thread."""

    def answered(
        self, request: "InferenceRequest", response: "InferenceResponse | ServingError | None", final: bool
    ) -> None:
        """Before `on_response`, with the same arguments; also for what the server refuses at once."""


class SendTrace(Protocol):
    """What a frontend tells a trace of its request, on the event loop's thread."""

    def sending(self) -> None:
        """An answer is encoded and goes out now."""

    def sent(self, waiting: Callable[[], bool]) -> None:
        """The last one has been handed over; `waiting` says whether the client has still to take some of it."""


@dataclass(slots=True, eq=False)
class InferenceRequest:
    """One inference request, decoded, owned by the frontend (or ensemble step) that made it.

    inputs: name -> array with the batch dimension, in native byte order; may be read-only views of the received body.
    requested: the output names asked for, empty for all.
    timeout_us: the client's own limit for waiting in the queue, 0 for none. priority: 0 for the model's default.
    """

    model_name: str
    inputs: dict[str, Tensor]
    on_response: OnResponse
    model_version: str = ""  # as asked: "" or "-1" for the server's choice
    id: str = ""
    requested: tuple[str, ...] = ()
    parameters: Parameters = field(default_factory=dict)
    priority: int = 0
    timeout_us: int = 0
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    arrival_ns: int = field(default_factory=time.monotonic_ns)
    of_ensemble: bool = False  # a step's: its tensors may lack, or have, a batch dimension of 1
    device_outputs: bool = False  # whoever asks (an ensemble, CUDA shared memory) takes tensors that stay on a GPU
    targets: "dict[str, OutputTarget] | None" = None  # outputs to classify, or to write into shared memory
    flow: "ResponseFlow | None" = None  # holds back a decoupled model while the client does not read
    pace: "Pace | None" = None  # of a backend that holds itself back; set by it
    empty_final_response: bool = False  # the client wants to be told of an end without a response
    observers: tuple[Observer, ...] = ()
    trace: SendTrace | None = None  # one of the observers
    # set by the server
    decoupled: bool = False  # the model may answer any number of times
    responses: int = 0  # how many a decoupled model has sent
    executing: bool = False  # the batch of a decoupled model is under way
    response_from_ns: int = 0  # when a decoupled model began to compute the next one
    batch_size: int = 1
    batch_key: object = None  # requests of unequal keys (shapes of variable dims, optional inputs) never share a batch
    queued_ns: int = 0
    finished: bool = False
    begun: bool = False  # an instance has had it
    cancelled: bool = False
    on_cancel: Callable[["InferenceRequest"], None] | None = None
    on_end: Callable[["InferenceRequest"], None] | None = None  # of the model that has it: called once, whoever ends it

    def respond(self, response: "InferenceResponse | ServingError | None", final: bool = True) -> None:
        """Hand over a response, on the loop's thread. Whatever follows the final one (a late answer to a cancelled
        request) is dropped. Here a request ends: it never raises, and one that cannot be handed over becomes an error."""
        if self.finished:
            return
        if final:
            self.finished = True  # as _end does: this is asked of every request
            if (end := self.on_end) is not None:
                self.on_end = None
                end(self)
        for observer in self.observers:
            safely("observing an answer", observer.answered, self, response, final)
        try:
            self.on_response(response, final)
        except Exception as error:
            failure = unexpected(error, "handing over a response")
            if not final:
                self._stop_model()
                self._end()
            safely("handing over an error", self.on_response, failure, True)

    def refused(self, error: ServingError) -> None:
        """Whoever sent it is told by an exception: only the observers hear of it here."""
        self._end()
        for observer in self.observers:
            safely("observing a refusal", observer.answered, self, error, True)

    def ask_to_stop(self) -> None:
        """Whoever asks takes what still comes: a model that is at it may look at `cancelled` and stop, or go on."""
        if self.begun and not self.finished:
            self.cancelled = True
        else:
            self.cancel()

    def cancel(self) -> None:
        """The client has gone: leave the queue, free the place in the batch; others in the batch are not disturbed."""
        if self.finished or self.cancelled:
            return
        self._stop_model()
        self.respond(cancelled())

    def _stop_model(self) -> None:
        self.cancelled = True
        if self.pace is not None:
            safely("releasing a model that waits for its client", self.pace.released)
        if self.on_cancel is not None:
            safely("cancelling a request", self.on_cancel, self)

    def _end(self) -> None:
        self.finished = True
        end, self.on_end = self.on_end, None
        if end is not None:
            end(self)

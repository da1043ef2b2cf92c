"""A batch: the requests that one execution of a model instance answers."""

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from mypy_extensions import mypyc_attr

from serving.core.datatypes import Tensor
from serving.core.device_tensor import concatenate
from serving.core.errors import ServingError, internal
from serving.core.in_flight import InFlightRequest
from serving.core.request import Parameters
from serving.core.response import Answer, InferenceResponse

# Hands an answer to the loop's thread immediately, without waiting for the batch to end: (request, answer, final).
Send = Callable[[InFlightRequest, Answer, bool], None]


def send_nowhere(request: InFlightRequest, answer: Answer, final: bool) -> None:
    """Drop an answer, because no client waits for warm-up requests."""


_NO_REQUESTS: AbstractSet[InFlightRequest] = frozenset()


@mypyc_attr(allow_interpreted_subclasses=True)
class Batch:
    """The requests of one execution, their responses, and the times of the execution's phases (monotonic ns).

    A backend instance reads `requests` (or `gather()`s them), calls `input_done()` when the inputs are ready and
    `infer_done()` when the model has run, and fills `responses` (or `scatter()`s the outputs). A response that is still None
    becomes an INTERNAL error, unless the backend is decoupled. A raised exception fails all requests that have no response yet.
    A decoupled backend leaves `responses` None and calls `send(request, response, final)`, from any thread. Any
    other backend may call `send` once for each request that it passed to `answer_later`.
    """

    __slots__ = (
        "ended_ns",
        "infer_done_ns",
        "inline",
        "input_done_ns",
        "instance",
        "later",
        "padding",
        "requests",
        "rescheduled",
        "responses",
        "send",
        "size",
        "started_ns",
        "to_memory",
    )

    def __init__(self, requests: list[InFlightRequest], size: int, padding: int = 0, send: Send = send_nowhere) -> None:
        """size: the sum of the requests' batch sizes. padding: the number of requests for empty slots of sequence batching."""
        self.requests = requests
        self.size = size
        self.padding = padding
        self.responses: list[Answer] = [None] * len(requests)
        self.later: AbstractSet[InFlightRequest] = _NO_REQUESTS  # requests that `send` will answer after the batch
        self.rescheduled: AbstractSet[InFlightRequest] = _NO_REQUESTS  # requests to execute again (iterative sequences)
        self.send = send
        self.instance = ""  # the label of the instance that executes it
        self.inline = False  # True if the event loop's thread executed it
        self.to_memory = False  # True if a request wants outputs in shared memory or as classes
        self.started_ns = self.input_done_ns = self.infer_done_ns = self.ended_ns = 0

    def answer_later(self, request: InFlightRequest) -> None:
        """Note that `send` will answer this request after the batch."""
        self.later = self.later | {request}

    def reschedule(self, request: InFlightRequest) -> None:
        """Note that a request has to be executed again (iterative sequences)."""
        self.rescheduled = self.rescheduled | {request}

    def fail(self, error: ServingError) -> None:
        """Answer each request that has no response with `error`, or all requests if the number of responses is wrong."""
        if len(self.responses) != len(self.requests):
            self.responses = [None] * len(self.requests)
        self.responses = [error if answer is None else answer for answer in self.responses]

    def input_done(self) -> None:
        """Note that the backend has gathered the inputs."""
        self.input_done_ns = time.monotonic_ns()

    def infer_done(self) -> None:
        """Note that the model has run."""
        self.infer_done_ns = time.monotonic_ns()

    def timing(self, waited_ns: int) -> Parameters:
        """Return the response parameters that `slipway_timing` asks for. waited_ns: the request's time in the queue."""
        return {"slipway_queue_us": waited_ns // 1000, "slipway_compute_us": (self.ended_ns - self.started_ns) // 1000}

    def gather(self) -> dict[str, Tensor]:
        """Return the inputs by name, of shape [size, ...]: the tensors of a single request, or one concatenation per input.

        The scheduler ensures that the requests have the same inputs and, except for ragged inputs, equal non-batch dims.
        """
        requests = self.requests
        if len(requests) == 1:
            return requests[0].inputs
        return {name: concatenate([request.inputs[name] for request in requests]) for name in requests[0].inputs}

    def scatter(self, outputs: dict[str, Tensor], model_name: str, model_version: int) -> None:
        """Give each request its rows of `outputs`, as views. A single request gets all rows, even of outputs without a batch
        dimension. Raises INTERNAL if an output does not have as many rows as the batch."""
        requests, responses = self.requests, self.responses
        if len(requests) == 1:
            request = requests[0]
            wanted = _select_outputs(outputs, request.requested_outputs) if request.requested_outputs else outputs
            responses[0] = InferenceResponse(model_name, model_version, request.asked.id, wanted)
            return
        for name, output in outputs.items():
            if not output.shape or output.shape[0] != self.size:
                raise internal(f"output '{name}' has shape {list(output.shape)}, but the batch has {self.size} rows")
        start = 0
        for index, request in enumerate(requests):
            stop = start + request.batch_size
            rows = {name: output[start:stop] for name, output in outputs.items()}
            if request.requested_outputs:
                rows = _select_outputs(rows, request.requested_outputs)
            responses[index] = InferenceResponse(model_name, model_version, request.asked.id, rows)
            start = stop

    def union_of_requested(self, all_outputs: Sequence[str]) -> list[str]:
        """Return the outputs that at least one request asks for, in the model's order."""
        wanted: set[str] = set()
        for request in self.requests:
            if not request.requested_outputs:
                return list(all_outputs)
            wanted.update(request.requested_outputs)
        return [name for name in all_outputs if name in wanted]


def _select_outputs(outputs: dict[str, Tensor], requested: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: output for name, output in outputs.items() if name in requested}

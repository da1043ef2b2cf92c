"""A model on another server as an arm of a rollout: it takes and answers requests like a local model.

submit(request) -> check -> wait for a place -> RemoteProtocol.infer -> check its outputs -> request.respond
Answers must have the outputs that the local model declares, so clients cannot tell which server computed them.
"""

import asyncio
import time
from collections.abc import Callable

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Remote
from serving.core.datatypes import BY_CONFIG, Tensor, datatype_of
from serving.core.device_tensor import host_array
from serving.core.errors import Code, Exhausted, NoAnswer, ServingError, unavailable, unexpected, unsupported
from serving.core.in_flight import InFlightRequest
from serving.core.response import InferenceResponse
from serving.core.tensor_check import TensorCheck, wire_shape
from serving.extensions.classification import Labels
from serving.extensions.tensor_parameters import apply_targets
from serving.resources.request_memory import RequestMemory
from serving.traffic.remotes.allow_list import RemoteAccess
from serving.traffic.remotes.open_sequences import OpenSequences
from serving.traffic.remotes.protocol import RemoteAnswer
from serving.traffic.remotes.protocols import KEEP_SEQUENCES, make_protocol

MAX_IN_FLIGHT = 64  # requests to the other server under way at a time
MAX_WAITING = 512  # further requests that may wait


class NotAsDeclared(ServingError):
    """The error for an answer whose outputs are not those that the local model declares."""

    def __init__(self, message: str, outputs: dict[str, Tensor]) -> None:
        super().__init__(Code.INTERNAL, message)
        self.outputs = outputs


class RemoteModel:
    """All methods run on the event loop's thread."""

    def __init__(
        self,
        remote: Remote,
        config: ModelConfig,
        access: RemoteAccess,
        memory: RequestMemory,
        labels: Callable[[], Labels] = dict,
    ) -> None:
        """config: the configuration of the local model, whose inputs and outputs the other model must have. labels: returns the
        names of classes.
        Raises INVALID_ARG or UNSUPPORTED if the model cannot have an arm on that server."""
        if config.model_transaction_policy.decoupled:
            raise unsupported("a decoupled model cannot have an arm of its rollout on another server")
        if config.HasField("sequence_batching") and remote.protocol not in KEEP_SEQUENCES:
            raise unsupported(
                f"a model with sequences cannot have an arm of its rollout on a server with protocol '{remote.protocol}': "
                f"expected {' or '.join(KEEP_SEQUENCES)}"
            )
        self.address = access.address
        self._name = config.name
        self._timeout_s = float(remote.timeout_s)
        self._labels = labels
        self._batches = config.max_batch_size > 0
        self._declared = {
            one.name: (BY_CONFIG[one.data_type].name, tuple(wire_shape(one, config))) for one in config.output
        }
        self._check = TensorCheck(_without_reshapes(config))
        self._protocol = make_protocol(remote, config, access, memory)
        self._places = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._tasks: dict[InFlightRequest, asyncio.Task[None]] = {}
        batching = config.sequence_batching
        self._sequences = OpenSequences(batching.max_sequence_idle_microseconds / 1e6)
        self._waiting = 0
        self._closed = False

    @property
    def outputs(self) -> frozenset[str] | None:
        """The outputs that the other server can give, or None for all outputs of the model."""
        return self._protocol.outputs

    @property
    def pending(self) -> int:
        """The number of requests that wait to be sent to the other server."""
        return self._waiting

    @property
    def needs_eviction(self) -> bool:
        """Whether local models must be evicted to use this model: never."""
        return False

    @property
    def in_flight(self) -> int:
        """The number of requests that are accepted and not yet answered."""
        return len(self._tasks)

    # -- requests --------------------------------------------------------------------------------------------------
    def submit(self, request: InFlightRequest) -> None:
        """Check a request, and begin to send it. Raises the ServingError with which the caller must answer the request."""
        position = request.asked.sequence
        if self._closed and (position.start or not self.sequence_start_ns(position.id)):
            raise unavailable(f"model '{self._name}' has no arm on the server at {self.address} any more")
        if len(self._tasks) >= MAX_IN_FLIGHT + MAX_WAITING:
            raise Exhausted(
                f"the server at {self.address} has {MAX_IN_FLIGHT} requests for model '{self._name}' and {MAX_WAITING} more "
                "wait: try again later"
            )
        self._check.request(request)
        request.inputs = {name: host_array(tensor) for name, tensor in request.inputs.items()}
        request.accept(self, time.monotonic_ns())
        before = self._sequences.before(position.id)
        task = self._tasks[request] = asyncio.get_running_loop().create_task(self._run(request, before))
        if position.id:
            self._sequences.follow(position, task)

    def sequence_start_ns(self, identifier: int | str) -> int:
        """Return when an open sequence began, in monotonic ns; 0 if no such sequence is open."""
        return self._sequences.start_ns(identifier)

    def take_back(self, wanted: Callable[[InFlightRequest], bool]) -> list[InFlightRequest]:
        """Remove and return the unsent requests for which `wanted` is true; requests of sequences stay."""
        waiting = [one for one in self._tasks if not one.started and not one.asked.sequence.id]
        taken = [request for request in waiting if wanted(request)]
        for request in taken:
            self._tasks.pop(request).cancel()
            request.reset()
        return taken

    def request_ended(self, request: InFlightRequest) -> None:
        """Forget a request that has its answer."""
        self._tasks.pop(request, None)

    def request_cancelled(self, request: InFlightRequest) -> None:
        """Cancel the task of a request that its client has cancelled."""
        task = self._tasks.get(request)
        if task is not None:
            task.cancel()

    async def drain(self) -> None:
        """Accept only requests of open sequences. Disconnect when these have ended and all requests are answered."""
        self._closed = True
        await self._sequences.wait_until_ended()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._protocol.close()

    def abandon_sequences(self) -> None:
        """Make `drain` stop waiting for open sequences. Called when no more of their requests will come."""
        self._sequences.abandon()

    async def _run(self, request: InFlightRequest, before: "asyncio.Task[None] | None") -> None:
        """Wait for the previous request of the sequence, send the request, and answer it."""
        try:
            async with asyncio.timeout(self._timeout_s):
                self._waiting += 1
                try:
                    if before is not None:
                        await asyncio.wait([before])
                    await self._places.acquire()
                finally:
                    self._waiting -= 1
                try:
                    request.started = True
                    answer = await self._protocol.infer(request)
                finally:
                    self._places.release()
            request.respond(self._response(request, answer))
        except TimeoutError:
            request.respond(NoAnswer(f"the server at {self.address} has not answered within {self._timeout_s:g} s"))
        except Exception as error:
            request.respond(unexpected(error, f"asking the server at {self.address}"))

    # -- answers ---------------------------------------------------------------------------------------------------
    def _response(self, request: InFlightRequest, answer: RemoteAnswer) -> InferenceResponse | ServingError:
        """Return the response that the local model would give, or an error if the outputs are not as declared."""
        wanted = request.requested_outputs or [
            name for name in self._declared if self.outputs is None or name in self.outputs
        ]
        outputs = {name: answer.outputs[name] for name in self._declared if name in wanted and name in answer.outputs}
        for name in wanted:
            if wrong := self._wrong(name, outputs.get(name), request.batch_size):
                message = f"the server at {self.address} does not answer as model '{self._name}' declares: {wrong}"
                return NotAsDeclared(message, outputs)
        response = InferenceResponse(self._name, answer.version, request.asked.id, outputs, answer.parameters)
        targets = request.asked.output_targets
        return apply_targets(response, targets, self._labels(), self._batches) if targets else response

    def _wrong(self, name: str, output: Tensor | None, rows: int) -> str:
        """Return how an output differs from its declaration, as a clause; "" if it does not differ."""
        if output is None:
            return f"output '{name}' is missing"
        datatype, dims = self._declared[name]
        shape = output.shape
        fits = len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape, strict=True))
        whole = not self._batches or not shape or shape[0] == rows
        found = datatype_of(output).name if isinstance(output, np.ndarray) else ""
        if found == datatype and fits and whole:
            return ""
        expected = [rows, *dims[1:]] if self._batches and dims else list(dims)
        return f"output '{name}' came as {found} {list(shape)}, expected {datatype} {expected}"


def _without_reshapes(config: ModelConfig) -> ModelConfig:
    """Return the configuration without reshapes: the other server gets the shapes that clients send."""
    seen = ModelConfig()
    seen.CopyFrom(config)
    for tensor in (*seen.input, *seen.output):
        tensor.ClearField("reshape")
    return seen

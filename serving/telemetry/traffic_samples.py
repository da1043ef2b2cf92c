"""Samples a model's next requests with their answers, which become examples and golden requests.

A sample must be repeatable from its tensors alone. So requests are skipped and counted if they belong to sequences or decoupled
models, use classification or outputs in shared memory, are too large, or fail. While no sampling runs, no request is observed.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from serving.core.datatypes import Tensor
from serving.core.errors import unavailable
from serving.core.in_flight import InFlightRequest, QuietObserver
from serving.core.request import ParameterValue
from serving.core.response import Answer, InferenceResponse

MAX_BYTES = 1 << 20  # bytes of the tensors of one request and its answer
MAX_ALL_BYTES = 32 << 20  # bytes of tensors in all samples of one sampling
MAX_SAMPLINGS = 8  # samplings that may run at the same time


@dataclass(frozen=True, slots=True)
class Sample:
    """One request with its answer; the tensors are copies."""

    version: int
    inputs: dict[str, Tensor]
    requested_outputs: tuple[str, ...]
    parameters: dict[str, ParameterValue]
    outputs: dict[str, Tensor]


@dataclass(slots=True, eq=False)
class Sampling:
    """A caller's request for samples, and the samples so far. version: the version to sample, or None for all versions."""

    model: str
    version: int | None
    count: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    samples: list[Sample] = field(default_factory=list)
    too_large: int = 0
    failed: int = 0
    unfit: int = 0
    seconds: float = 0.0
    _open: int = 0  # the number of observed requests that wait for their last answer
    _bytes: int = 0

    @property
    def wants_more(self) -> bool:
        return not self.done.is_set() and len(self.samples) + self._open < self.count

    def follow(self, request: InFlightRequest, keeps_parameters: bool) -> None:
        """Observe a request, if it can become a sample."""
        asked = request.asked
        if asked.sequence.id or asked.output_targets or not on_host(asked.inputs):
            self.unfit += 1
            return
        size = size_of(asked.inputs)
        if size > MAX_BYTES:
            self.too_large += 1
            return
        self._open += 1
        request.observe(_SampleObserver(self, request, size, keeps_parameters))

    def take(self, followed: "_SampleObserver", answer: Answer, final: bool, streamed: bool) -> None:
        """Take the last answer to an observed request."""
        self._open -= 1
        if self.done.is_set():
            return
        if streamed:
            self.unfit += 1
        elif not isinstance(answer, InferenceResponse) or not final:
            self.failed += 1
        elif self.version is not None and answer.model_version != self.version:
            return
        elif answer.in_shared_memory is not None or not on_host(answer.outputs):
            self.unfit += 1
        elif (size := followed.size + size_of(answer.outputs)) > MAX_BYTES:
            self.too_large += 1
        else:
            outputs = {name: np.array(tensor) for name, tensor in answer.outputs.items()}
            self.samples.append(
                Sample(answer.model_version, followed.inputs, followed.requested_outputs, followed.parameters, outputs)
            )
            self._bytes += size
            if len(self.samples) >= self.count or self._bytes >= MAX_ALL_BYTES:
                self.done.set()


class _SampleObserver(QuietObserver):
    def __init__(self, sampling: Sampling, request: InFlightRequest, size: int, keeps_parameters: bool) -> None:
        asked = request.asked
        self._sampling: Sampling | None = sampling
        self.size = size
        # Copies, because the memory of the request's tensors may be reused.
        self.inputs = {name: np.array(tensor) for name, tensor in asked.inputs.items()}
        self.requested_outputs = asked.requested_outputs
        self.parameters = dict(asked.parameters) if keeps_parameters else {}

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        sampling, self._sampling = self._sampling, None
        if sampling is not None:
            sampling.take(self, answer, final, request.stream is not None)


class TrafficSampler:
    """The samplings that are running. Used on the event loop's thread."""

    def __init__(self, keeps_parameters: bool) -> None:
        """keeps_parameters: whether samples contain the requests' parameters. Must be False if headers become parameters,
        because headers may be secret."""
        self.samplings: list[Sampling] = []
        self._keeps_parameters = keeps_parameters

    def observe(self, request: InFlightRequest) -> None:
        for sampling in self.samplings:
            if sampling.model == request.asked.model_name and sampling.wants_more:
                sampling.follow(request, self._keeps_parameters)

    async def sample(self, sampling: Sampling, seconds: float) -> None:
        """Wait until the sampling has its samples or its time is over. Raises UNAVAILABLE if too many samplings are running."""
        if len(self.samplings) >= MAX_SAMPLINGS:
            raise unavailable(f"{MAX_SAMPLINGS} samplings of traffic are under way: try again when one has ended")
        began = time.monotonic()
        self.samplings.append(sampling)
        try:
            async with asyncio.timeout(seconds):
                await sampling.done.wait()
        except TimeoutError:
            pass
        finally:
            sampling.done.set()
            self.samplings.remove(sampling)
            sampling.seconds = time.monotonic() - began


def on_host(tensors: Mapping[str, Tensor]) -> bool:
    return all(isinstance(tensor, np.ndarray) for tensor in tensors.values())


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the total size of tensors in bytes, for BYTES including 4 bytes for the length of each element."""
    return sum(
        tensor.nbytes if tensor.dtype.kind != "O" else sum(4 + len(element) for element in tensor.reshape(-1))
        for tensor in tensors.values()
    )

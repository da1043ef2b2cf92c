"""Counters and log-spaced histograms: plain integers that merge by addition. Percentiles come from merged histograms.

Updated on the event loop's thread only. Rendered by frontends/metrics_server.py (Prometheus text, the live feed) and by
server.py (the statistics extension).
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.errors import ServingError
from serving.resources.memory import NOTHING, MemoryUse
from serving.telemetry.first_response import FirstResponses, first_responses

if TYPE_CHECKING:
    from serving.core.batch import Batch
    from serving.core.request import InferenceRequest, InferenceResponse

MAX_PLACES = 1000  # responses of a request that are counted apart; all further ones count in the last place

# Histogram buckets over microseconds: 16 to each doubling (relative width 4-6 %), exact below 16 us, up to 2**31 us.
_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_MAX_BITS = 31
BUCKETS = (_MAX_BITS - _SUB_BITS + 1) * _SUB


def bucket_of(microseconds: int) -> int:
    """The bucket's index of a duration in us; durations of 2**31 us and more go into the last one."""
    if microseconds < _SUB:
        return microseconds if microseconds > 0 else 0
    shift = microseconds.bit_length() - 1 - _SUB_BITS
    index = (shift << _SUB_BITS) + (microseconds >> shift)
    return index if index < BUCKETS else BUCKETS - 1


def _upper_bound(index: int) -> int:
    if index < _SUB:
        return index + 1
    shift = (index >> _SUB_BITS) - 1
    return ((index & (_SUB - 1)) + _SUB + 1) << shift


# Exclusive upper bound of each bucket in us; bucket i holds [BOUNDS_US[i-1], BOUNDS_US[i]).
BOUNDS_US: list[int] = [_upper_bound(index) for index in range(BUCKETS)]


class Histogram:
    """Counts per bucket, and the sum in nanoseconds."""

    __slots__ = ("counts", "sum_ns", "total")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.total = 0
        self.sum_ns = 0

    def add(self, nanoseconds: int, times: int = 1) -> None:
        us = nanoseconds // 1000
        if us < _SUB:
            index = us if us > 0 else 0
        else:
            shift = us.bit_length() - 1 - _SUB_BITS
            index = (shift << _SUB_BITS) + (us >> shift)
            if index >= BUCKETS:
                index = BUCKETS - 1
        counts = self.counts
        counts[index] = counts.get(index, 0) + times
        self.total += times
        self.sum_ns += nanoseconds * times


class Phases(NamedTuple):
    """How long an execution took, in nanoseconds."""

    input_ns: int
    infer_ns: int
    output_ns: int

    @classmethod
    def of(cls, batch: "Batch") -> "Phases":
        """A backend that does not tell its phases apart has only inferred."""
        infer_from = batch.input_done_ns or batch.started_ns
        infer_to = batch.infer_done_ns or batch.ended_ns
        return cls(infer_from - batch.started_ns, infer_to - infer_from, batch.ended_ns - infer_to)

    def plus(self, other: "Phases") -> "Phases":
        return Phases(self.input_ns + other.input_ns, self.infer_ns + other.infer_ns, self.output_ns + other.output_ns)


NO_PHASES = Phases(0, 0, 0)


@dataclass(slots=True)
class Duration:
    """Triton's StatisticDuration: how many, and their cumulative time."""

    count: int = 0
    ns: int = 0

    def add(self, nanoseconds: int) -> None:
        self.count += 1
        self.ns += nanoseconds


@dataclass(slots=True)
class BatchStatistics:
    """Executions of one batch size."""

    count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass(slots=True)
class ResponseStatistics:
    """Triton's InferResponseStatistics: the responses that decoupled requests got in one place of their order."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)

    def count(self, response: "InferenceResponse | ServingError | None", infer_ns: int, output_ns: int) -> None:
        """infer_ns: since the request's last response, or since its execution began. None: an end without a response."""
        self.compute_infer.add(infer_ns)
        if response is None:
            self.empty_response.add(infer_ns)
        elif isinstance(response, ServingError):
            self.fail.add(infer_ns)
        else:
            self.compute_output.add(output_ns)
            self.success.add(infer_ns + output_ns)


@dataclass(slots=True)
class PhaseHistograms:
    """What the summaries of /metrics need beside the histograms that every model has."""

    compute_input: Histogram = field(default_factory=Histogram)
    compute_infer: Histogram = field(default_factory=Histogram)
    compute_output: Histogram = field(default_factory=Histogram)
    cache_hit: Histogram = field(default_factory=Histogram)
    cache_miss: Histogram = field(default_factory=Histogram)


Key = tuple[str, int, str]  # name, version, namespace


@dataclass(slots=True, eq=False)
class ModelStatistics:
    """What one model version has done since it was loaded; survives reloads of the same version.

    success and fail count requests, queue and the compute durations successful requests, inference_count their rows,
    execution_count model executions (as Triton does). What a decoupled model executed counts as a success there.
    cancel counts requests whose client left before they were answered; they are failures with reason CANCELED.
    """

    model_name: str
    model_version: int
    namespace: str = ""  # of the model's identifier
    inference_count: int = 0
    execution_count: int = 0
    last_inference_ms: int = 0  # unix time
    state: str = ""  # as the repository index shows it; refreshed by InferenceServer.statistics()
    condition: str = ""  # repository.core.condition.Condition; refreshed likewise
    failed: bool = False  # the last load failed; refreshed likewise
    pending: int = 0  # requests accepted, not yet handed to an instance; refreshed likewise
    in_flight: int = 0  # requests accepted, not yet answered; refreshed likewise
    memory: MemoryUse = NOTHING  # refreshed likewise
    load_s: float | None = None  # how long the last load took
    tags: dict[str, str] = field(default_factory=dict)  # the configuration's metric_tags
    caches: bool = False  # the response cache keeps its answers
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    failures: dict[str, int] = field(default_factory=dict)  # reason (REJECTED, CANCELED, BACKEND, OTHER) -> count
    batches: dict[int, BatchStatistics] = field(default_factory=dict)  # batch size -> executions
    responses: dict[int, ResponseStatistics] = field(default_factory=dict)  # of decoupled models, by their place
    request_latency: Histogram = field(default_factory=Histogram)
    queue_latency: Histogram = field(default_factory=Histogram)
    compute_latency: Histogram = field(default_factory=Histogram)
    phases: PhaseHistograms | None = None
    first_responses: bool | None = None  # which models have the next one; None: decoupled ones
    first_response: FirstResponses | None = None
    revision: int = 0  # grows with every change: the live feed sends what changed

    def configure(self, config: ModelConfig, caches: bool) -> None:
        self.tags = dict(config.metric_tags)
        self.caches = caches
        self.first_response = first_responses(config, self.first_responses, self.first_response)

    # -- requests --------------------------------------------------------------------------------------------------
    def count_success(self, request: "InferenceRequest", now: int) -> None:
        took = now - request.arrival_ns
        self.success.count += 1
        self.success.ns += took
        self.request_latency.add(took)
        self.revision += 1
        if self.first_response is not None and not request.decoupled:
            self.first_response.add(took)

    def count_failure(self, request: "InferenceRequest", reason: str) -> None:
        self.fail.add(time.monotonic_ns() - request.arrival_ns)
        self.failures[reason] = self.failures.get(reason, 0) + 1
        self.revision += 1

    def count_cancel(self, request: "InferenceRequest") -> None:
        self.count_failure(request, "CANCELED")
        self.cancel.add(time.monotonic_ns() - request.arrival_ns)

    def count_queued(self, waited: int) -> None:
        self.queue.count += 1
        self.queue.ns += waited
        self.queue_latency.add(waited)

    def count_hit(self, waited: int, took: int) -> None:
        """The response cache had the answer."""
        self.count_queued(waited)
        self.cache_hit.add(took)
        if self.phases is not None:
            self.phases.cache_hit.add(took)

    def count_miss(self, took: int) -> None:
        """It had not, and was given the answer: the time of both."""
        self.cache_miss.add(took)
        if self.phases is not None:
            self.phases.cache_miss.add(took)

    # -- responses of decoupled models -----------------------------------------------------------------------------
    def responses_of(self, request: "InferenceRequest") -> ResponseStatistics:
        """Where the next response of this request counts."""
        place = min(request.responses, MAX_PLACES - 1)
        found = self.responses.get(place)
        if found is None:
            found = self.responses[place] = ResponseStatistics()
        return found

    def count_first_response(self, request: "InferenceRequest", now: int) -> None:
        if not request.responses and self.first_response is not None:
            self.first_response.add(now - request.arrival_ns)

    # -- executions ------------------------------------------------------------------------------------------------
    def count_batch(self, batch: "Batch") -> Phases:
        phases = Phases.of(batch)
        self.count_execution(batch.size, phases)
        self.compute_latency.add(batch.ended_ns - batch.started_ns)
        return phases

    def count_execution(self, size: int, phases: Phases) -> None:
        rows = self.batches.get(size)
        if rows is None:
            rows = self.batches[size] = BatchStatistics()
        rows.count += 1
        rows.compute_input_ns += phases.input_ns
        rows.compute_infer_ns += phases.infer_ns
        rows.compute_output_ns += phases.output_ns
        self.execution_count += 1
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.revision += 1

    def count_computed(self, requests: int, rows: int, phases: Phases) -> None:
        """So many requests of an execution succeeded: each of them took its whole time, as in Triton."""
        self.inference_count += rows
        for duration, ns in (
            (self.compute_input, phases.input_ns),
            (self.compute_infer, phases.infer_ns),
            (self.compute_output, phases.output_ns),
        ):
            duration.count += requests
            duration.ns += ns * requests
        if self.phases is not None and requests:
            self.phases.compute_input.add(phases.input_ns, requests)
            self.phases.compute_infer.add(phases.infer_ns, requests)
            self.phases.compute_output.add(phases.output_ns, requests)

    @property
    def key(self) -> Key:
        return self.model_name, self.model_version, self.namespace

"""The counters of each model version, and the message of Triton's statistics extension.

The counters are updated on the event loop's thread only. Packages of serving.frontends render them: `metrics` as Prometheus
text and as the live feed, `rest` and `grpc` as the statistics extension's message.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.core.condition import Condition
from repository.core.histogram import Histogram
from serving.core.errors import ServingError
from serving.resources.memory import NOTHING, MemoryUse
from serving.telemetry.noted_requests import NotedRequests

if TYPE_CHECKING:
    from serving.core.batch import Batch
    from serving.core.in_flight import Execution, InFlightRequest
    from serving.core.response import Answer

# Triton's histogram of the time to the first response, and its default bounds. Source: Triton, docs/user_guide/metrics.md.
FIRST_RESPONSE_FAMILY = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_BOUNDS_MS = (100, 500, 2000, 5000)

MAX_NOTED = 64  # the number of executions after which `count_batch` adds them up
GAPS_OF = 16  # of this many full notes, the gaps between requests are counted in one
MOST_INSTANCES = 8  # of a version that are counted apart
OTHER_INSTANCES = "others"
MAX_PLACES = 1000  # responses of a request that have separate counters; further responses count as the last one


class Phases(NamedTuple):
    """The times of the phases of an execution, in nanoseconds."""

    input_ns: int
    infer_ns: int
    output_ns: int

    @classmethod
    def of(cls, execution: "Execution") -> "Phases":
        """Return the phases of an execution. If the backend reports no phases, all of the time is inference."""
        infer_from = execution.input_done_ns or execution.started_ns
        infer_to = execution.infer_done_ns or execution.ended_ns
        return cls(infer_from - execution.started_ns, infer_to - infer_from, execution.ended_ns - infer_to)


@dataclass
class Duration:
    """Triton's StatisticDuration: a number of events and their cumulative time."""

    count: int = 0
    ns: int = 0

    def add(self, nanoseconds: int) -> None:
        self.count += 1
        self.ns += nanoseconds

    def add_all(self, count: int, nanoseconds: int) -> None:
        """Count several events with their total time."""
        self.count += count
        self.ns += nanoseconds


@dataclass
class BatchStatistics:
    """The executions of one batch size."""

    count: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0


@dataclass
class InstanceStatistics:
    """The counters of one instance. success: the requests that its batches answered; fail: those that its batches failed."""

    success: int = 0
    fail: int = 0
    inference_count: int = 0
    execution_count: int = 0
    compute_ns: int = 0
    request_latency: Histogram = field(default_factory=Histogram)

    def count(self, executions: int, rows: int, compute_ns: int, took: list[int], of_version: Histogram) -> None:
        """Count executions, here and in the version's latencies. took: how long each answered request took in total, in ns."""
        self.success += len(took)
        self.inference_count += rows
        self.execution_count += executions
        self.compute_ns += compute_ns
        grown = Histogram()
        grown.add_all(took)
        self.request_latency.add_histogram(grown)
        of_version.add_histogram(grown)


@dataclass
class ResponseStatistics:
    """Triton's InferResponseStatistics: counters of the responses of a decoupled model at one place of their streams, such as
    all first responses."""

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    empty_response: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)

    def count(self, response: "Answer", infer_ns: int, output_ns: int) -> None:
        """Count one response. None means that the stream ended without a further response.

        infer_ns: the time since the request's previous response, or since its execution began. output_ns: the time to finish
        and send the response.
        """
        self.compute_infer.add(infer_ns)
        if response is None:
            self.empty_response.add(infer_ns)
        elif isinstance(response, ServingError):
            self.fail.add(infer_ns)
        else:
            self.compute_output.add(output_ns)
            self.success.add(infer_ns + output_ns)


class FirstResponseHistogram:
    """Triton's histogram of the time to a request's first response, in milliseconds."""

    __slots__ = ("bounds_ms", "counts", "sum_ms")

    def __init__(self, bounds_ms: Sequence[float]) -> None:
        """bounds_ms: inclusive upper bounds, in rising order."""
        self.bounds_ms = list(bounds_ms)
        self.counts = [0] * (len(self.bounds_ms) + 1)
        self.sum_ms = 0

    def add(self, nanoseconds: int) -> None:
        milliseconds = nanoseconds // 1_000_000
        self.counts[bisect_left(self.bounds_ms, milliseconds)] += 1
        self.sum_ms += milliseconds


def first_response_histogram(
    config: ModelConfig, enabled: bool | None, before: FirstResponseHistogram | None
) -> FirstResponseHistogram | None:
    """Return the histogram for a configuration, or None if it has none.
    enabled: the setting of --metrics-config; if it is None, only decoupled models have the histogram. before: the current
    histogram, which is kept if its bounds are equal.
    """
    if not (config.model_transaction_policy.decoupled if enabled is None else enabled):
        return None
    bounds: Sequence[float] = FIRST_RESPONSE_BOUNDS_MS
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE_FAMILY:
            bounds = control.histogram_options.buckets
    return before if before is not None and before.bounds_ms == list(bounds) else FirstResponseHistogram(bounds)


@dataclass
class PhaseHistograms:
    """Histograms that models have only if the metrics include summaries."""

    compute_input: Histogram = field(default_factory=Histogram)
    compute_infer: Histogram = field(default_factory=Histogram)
    compute_output: Histogram = field(default_factory=Histogram)
    cache_hit: Histogram = field(default_factory=Histogram)
    cache_miss: Histogram = field(default_factory=Histogram)


Key = tuple[str, int, str]  # name, version, namespace
# An execution that is not yet added up: its size, whether it was inline, its start, its phases, `waited`, `took` and `rows` of
# `count_batch`, and its instance.
_Noted = tuple[int, bool, int, int, int, int, list[int], list[int], int, str]


class Loading(NamedTuple):
    """The progress of a load. release: the release that is being loaded. done, of: the finished and all items of this step."""

    release: int | None
    step: str
    done: int
    of: int


class VersionStatus(NamedTuple):
    """The state of a version, in addition to its counters.

    state, condition, failed, release, aliases, loading: as in the repository index. pending: how many accepted requests wait
    for an instance. in_flight: how many accepted requests are not yet answered.
    """

    state: str = ""
    condition: Condition = Condition.NONE
    failed: bool = False
    pending: int = 0
    in_flight: int = 0
    memory: MemoryUse = NOTHING
    release: int | None = None
    aliases: tuple[str, ...] = ()
    loading: Loading | None = None


UNKNOWN_STATUS = VersionStatus()


@dataclass(eq=False)
class ModelStatistics:
    """The counters of one model version since it was first loaded. A reload keeps them.

    success, fail: requests. queue, compute_*: successful requests. inference_count: the rows of successful requests.
    execution_count: executions of the model, as in Triton. For these counters, each executed request of a decoupled model is
    successful.
    cancel: requests whose client left before the answer. They also count as failures with reason CANCELED.
    mirrored, mirrored_failures: requests of a rollout's shadow. success and fail do not include them.
    arrival_gaps: the times from one executed request's arrival in the queue to the next one's. Under load, only a part of them.
    """

    model_name: str
    model_version: int
    namespace: str = ""  # the namespace of the model's identifier
    inference_count: int = 0
    execution_count: int = 0
    inline_count: int = 0  # the number of executions on the event loop's thread
    last_inference_ms: int = 0  # the time of the last execution, in unix time
    status: VersionStatus = UNKNOWN_STATUS  # updated by RepositoryIndex.statistics()
    load_s: float | None = None  # the duration of the last load
    tags: dict[str, str] = field(default_factory=dict)  # the configuration's metric_tags
    caches: bool = False  # True if the response cache keeps answers of this version
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    cancel: Duration = field(default_factory=Duration)
    mirrored: Duration = field(default_factory=Duration)
    mirrored_failures: int = 0
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    failures: dict[str, int] = field(default_factory=dict)  # reason (REJECTED, CANCELED, BACKEND, OTHER) -> count
    batches: dict[int, BatchStatistics] = field(default_factory=dict)  # batch size -> executions
    responses: dict[int, ResponseStatistics] = field(
        default_factory=dict
    )  # place in a decoupled model's stream -> counters
    request_latency: Histogram = field(default_factory=Histogram)
    queue_latency: Histogram = field(default_factory=Histogram)
    compute_latency: Histogram = field(default_factory=Histogram)
    arrival_gaps: Histogram = field(default_factory=Histogram)
    noted: NotedRequests = field(
        default_factory=NotedRequests
    )  # the slowest and the failed requests of the last minutes
    instances: "dict[str, InstanceStatistics]" = field(default_factory=dict)  # by label; {} if there is only one
    phases: PhaseHistograms | None = None
    first_responses: bool | None = None  # whether to fill `first_response`; None: only for decoupled models
    first_response: FirstResponseHistogram | None = None
    revision: int = 0  # grows with each change, so that the live feed can skip unchanged versions
    _noted: list[_Noted] = field(default_factory=list)
    _ended_ns: int = 0  # the end of the last noted execution (monotonic ns)
    _arrived_ns: int = 0  # the arrival of the last request in an added-up execution (monotonic ns)
    _full_notes: int = 0

    def configure(self, config: ModelConfig, caches: bool) -> None:
        self.tags = dict(config.metric_tags)
        self.caches = caches
        self.first_response = first_response_histogram(config, self.first_responses, self.first_response)

    # -- requests --------------------------------------------------------------------------------------------------
    def count_success(self, request: "InFlightRequest", now: int) -> None:
        took = now - request.arrival_ns
        if request.mirrored:
            self.count_mirrored(took)
            return
        self.success.count += 1
        self.success.ns += took
        self.request_latency.add(took)
        self.revision += 1
        if self.first_response is not None and request.stream is None:
            self.first_response.add(took)
        if now >= self.noted.until_ns or took > self.noted.floor_ns:
            self.noted.succeeded(request, took, now)

    def count_mirrored(self, took: int) -> None:
        self.mirrored.add(took)
        self.revision += 1

    def count_failure(
        self,
        request: "InFlightRequest",
        reason: str,
        error: ServingError | None = None,
        batch: "Batch | None" = None,
    ) -> None:
        """Count a failed request. batch: the one that ran it, or None."""
        if request.mirrored:
            self.mirrored_failures += 1
            self.revision += 1
            return
        self.fail.add(time.monotonic_ns() - request.arrival_ns)
        self.failures[reason] = self.failures.get(reason, 0) + 1
        self.revision += 1
        if batch is not None and self.instances:
            self._of_instance(batch.instance).fail += 1
        if reason != "CANCELED":
            self.noted.failed(request, reason, error, batch)

    def count_cancel(self, request: "InFlightRequest") -> None:
        self.count_failure(request, "CANCELED")
        if not request.mirrored:
            self.cancel.add(time.monotonic_ns() - request.arrival_ns)

    def count_queued(self, waited: int) -> None:
        self.queue.count += 1
        self.queue.ns += waited
        self.queue_latency.add(waited)

    def count_hit(self, waited: int, took: int) -> None:
        """Count a request that the response cache answered."""
        self.count_queued(waited)
        self.cache_hit.add(took)
        if self.phases is not None:
            self.phases.cache_hit.add(took)

    def count_miss(self, took: int) -> None:
        """Count a request whose answer was not in the cache, and was inserted. took: the time for both, in ns."""
        self.cache_miss.add(took)
        if self.phases is not None:
            self.phases.cache_miss.add(took)

    # -- responses of decoupled models -----------------------------------------------------------------------------
    def responses_of(self, request: "InFlightRequest") -> ResponseStatistics:
        """Return the counters for the request's next response, by its place in the stream."""
        place = 0 if request.stream is None else min(request.stream.responses, MAX_PLACES - 1)
        found = self.responses.get(place)
        if found is None:
            found = self.responses[place] = ResponseStatistics()
        return found

    def count_first_response(self, request: "InFlightRequest", now: int) -> None:
        if self.first_response is not None and (request.stream is None or not request.stream.responses):
            self.first_response.add(now - request.arrival_ns)

    # -- executions ------------------------------------------------------------------------------------------------
    def count_batch(self, execution: "Execution", waited: list[int], took: list[int], rows: int) -> None:
        """Count an execution and its successful requests. As in Triton, each request counts the whole time of the execution.

        For speed, the execution is only noted, and `add_up_executions` adds up many together.
        waited: how long each successful request was queued, in ns. took: how long each request that the batch answered took in
        total, in ns. rows: the rows of the successful requests."""
        started, ended = execution.started_ns, execution.ended_ns
        # If the backend reports no phases, all of the time is inference.
        infer_from = execution.input_done_ns or started
        infer_to = execution.infer_done_ns or ended
        self._ended_ns = ended
        noted = self._noted
        noted.append(
            (
                execution.size,
                execution.inline,
                started,
                infer_from - started,
                infer_to - infer_from,
                ended - infer_to,
                waited,
                took,
                rows,
                execution.instance,
            )
        )
        if len(noted) >= MAX_NOTED:
            self.add_up_executions()

    def add_up_executions(self) -> None:
        """Add up the executions that `count_batch` has noted. Call this before reading the counters."""
        noted = self._noted
        if not noted:
            return
        self._noted = []
        inferences = computed = input_sum = infer_sum = output_sum = 0
        executions: list[int] = []
        all_waited: list[int] = []
        all_took: list[int] = []
        apart = bool(self.instances)
        sums: dict[str, list[int]] = {}  # instance -> executions, rows, nanoseconds
        tooks: dict[str, list[int]] = {}
        for size, inline, _, input_ns, infer_ns, output_ns, waited, took, rows, instance in noted:
            if apart:
                if (one := sums.get(instance)) is None:
                    one = sums[instance] = [0, 0, 0]
                    tooks[instance] = []
                one[0] += 1
                one[1] += rows
                one[2] += input_ns + infer_ns + output_ns
                tooks[instance] += took
            batch = self.batches.get(size)
            if batch is None:
                batch = self.batches[size] = BatchStatistics()
            batch.count += 1
            batch.compute_input_ns += input_ns
            batch.compute_infer_ns += infer_ns
            batch.compute_output_ns += output_ns
            executions.append(input_ns + infer_ns + output_ns)
            requests = len(waited)
            computed += requests
            inferences += rows
            self.inline_count += inline
            input_sum += input_ns * requests
            infer_sum += infer_ns * requests
            output_sum += output_ns * requests
            all_waited += waited
            all_took += took
            if self.phases is not None and requests:
                self.phases.compute_input.add(input_ns, requests)
                self.phases.compute_infer.add(infer_ns, requests)
                self.phases.compute_output.add(output_ns, requests)
        self.revision += 1
        self.execution_count += len(noted)
        self.last_inference_ms = (time.time_ns() - time.monotonic_ns() + self._ended_ns) // 1_000_000
        self.inference_count += inferences
        self.compute_input.add_all(computed, input_sum)
        self.compute_infer.add_all(computed, infer_sum)
        self.compute_output.add_all(computed, output_sum)
        self.queue.add_all(computed, sum(all_waited))
        self.success.add_all(len(all_took), sum(all_took))
        self.compute_latency.add_all(executions)
        self.queue_latency.add_all(all_waited)
        if apart:
            for instance, (count, of_rows, nanoseconds) in sums.items():
                counters = self._of_instance(instance)
                counters.count(count, of_rows, nanoseconds, tooks[instance], self.request_latency)
        else:
            self.request_latency.add_all(all_took)
        if self.first_response is not None:
            for nanoseconds in all_took:
                self.first_response.add(nanoseconds)
        self._count_gaps(noted)

    def split(self, instances: Sequence[str]) -> None:
        """Count each of these instances apart from now on, the last ones of many together; none if there is only one."""
        labels = list(dict.fromkeys(instances))
        if len(labels) > MOST_INSTANCES:
            labels = [*labels[: MOST_INSTANCES - 1], OTHER_INSTANCES]
        before = self.instances
        self.instances = {label: before.get(label) or InstanceStatistics() for label in labels} if labels[1:] else {}

    def _of_instance(self, label: str) -> InstanceStatistics:
        """Return the counters of an instance; those of the others for one that has none."""
        found = self.instances.get(label) or self.instances.get(OTHER_INSTANCES)
        return found or self.instances.setdefault(OTHER_INSTANCES, InstanceStatistics())

    def _count_gaps(self, noted: list[_Noted]) -> None:
        """Count the gaps between the arrivals of these requests. To be cheap under load, count one of GAPS_OF full notes."""
        before = self._arrived_ns
        if len(noted) >= MAX_NOTED:
            self._full_notes += 1
            if self._full_notes % GAPS_OF != 1:
                _, _, started, _, _, _, waited, _, _, _ = noted[-1]
                self._arrived_ns = started - waited[-1] if waited else 0
                return
        arrivals: list[int] = []
        for _, _, started, _, _, _, waited, _, _, _ in noted:
            arrivals += [started - nanoseconds for nanoseconds in waited]
        if not arrivals:
            return
        arrivals.sort()  # several instances end their executions in another order
        gaps: list[int] = []
        for arrived in arrivals:
            if 0 < before <= arrived:
                gaps.append(arrived - before)
            before = arrived
        self._arrived_ns = before
        self.arrival_gaps.add_all(gaps)

    def count_execution(self, size: int, phases: Phases) -> None:
        """Count one execution of an ensemble: all steps for one request."""
        batch = self.batches.get(size)
        if batch is None:
            batch = self.batches[size] = BatchStatistics()
        batch.count += 1
        batch.compute_input_ns += phases.input_ns
        batch.compute_infer_ns += phases.infer_ns
        batch.compute_output_ns += phases.output_ns

    def count_computed(self, rows: int, phases: Phases) -> None:
        """Count a successful request of an ensemble, with the times of its steps."""
        self.inference_count += rows
        self.compute_input.add(phases.input_ns)
        self.compute_infer.add(phases.infer_ns)
        self.compute_output.add(phases.output_ns)
        if self.phases is not None:
            self.phases.compute_input.add(phases.input_ns)
            self.phases.compute_infer.add(phases.infer_ns)
            self.phases.compute_output.add(phases.output_ns)

    @property
    def key(self) -> Key:
        return self.model_name, self.model_version, self.namespace


def fill_statistics(row: pb.ModelStatistics, statistics: ModelStatistics) -> None:
    """Write a version's counters into a message. Source: Triton, docs/protocol/extension_statistics.md."""
    statistics.add_up_executions()
    row.name = statistics.model_name
    row.version = str(statistics.model_version)
    row.last_inference = statistics.last_inference_ms
    row.inference_count = statistics.inference_count
    row.execution_count = statistics.execution_count
    totals = row.inference_stats
    for target, source in (
        (totals.success, statistics.success),
        (totals.fail, statistics.fail),
        (totals.queue, statistics.queue),
        (totals.compute_input, statistics.compute_input),
        (totals.compute_infer, statistics.compute_infer),
        (totals.compute_output, statistics.compute_output),
        (totals.cache_hit, statistics.cache_hit),
        (totals.cache_miss, statistics.cache_miss),
    ):
        _fill_duration(target, source)
    for place, responses in sorted(statistics.responses.items()):
        _fill_responses(row.response_stats[str(place)], responses)
    for size, batch in sorted(statistics.batches.items()):
        _fill_batch(row.batch_stats.add(batch_size=size), batch)
    _fill_memory(row, statistics.status.memory)


def _fill_responses(row: pb.InferResponseStatistics, statistics: ResponseStatistics) -> None:
    for target, source in (
        (row.compute_infer, statistics.compute_infer),
        (row.compute_output, statistics.compute_output),
        (row.success, statistics.success),
        (row.fail, statistics.fail),
        (row.empty_response, statistics.empty_response),
        (row.cancel, statistics.cancel),
    ):
        _fill_duration(target, source)


def _fill_batch(row: pb.InferBatchStatistics, batch: BatchStatistics) -> None:
    row.compute_input.count = row.compute_infer.count = row.compute_output.count = batch.count
    row.compute_input.ns = batch.compute_input_ns
    row.compute_infer.ns = batch.compute_infer_ns
    row.compute_output.ns = batch.compute_output_ns


def _fill_memory(row: pb.ModelStatistics, memory: MemoryUse) -> None:
    if memory.host:
        row.memory_usage.add(type="CPU", id=0, byte_size=memory.host)
    for device, size in memory.gpus:
        row.memory_usage.add(type="GPU", id=device, byte_size=size)


def _fill_duration(target: pb.StatisticDuration, source: Duration) -> None:
    target.count = source.count
    target.ns = source.ns

"""The JSON that an inference server sends: rows of the repository index and events of the live feed.

The index is Triton's (model repository extension, "Index"). The live feed (GET /v2/slipway/live) is Slipway's own, and so are
some fields of the index. Other servers lack the fields that are marked NotRequired.
"""

from dataclasses import dataclass
from typing import NotRequired, TypedDict

from dashboard.models.release import CheckStep
from repository.core.json_types import JsonObject


class Loading(TypedDict):
    """The progress of a load. release: its number, None if the configuration has no number."""

    release: int | None
    step: str  # check, memory, load, warm, golden, switch, drain
    done: int
    of: int


class LoadAnswer(TypedDict, total=False):
    """Slipway's answer to a load. The answers of other servers are empty."""

    release: int | None
    steps: list[CheckStep]


class TrafficHead(TypedDict):
    """The fields that every report of a rollout has. rollout: its name, or None if the model has no rollout."""

    model: str
    namespace: NotRequired[str]
    rollout: str | None


class ServerMetadata(TypedDict, total=False):
    """The part of a server's metadata that the dashboard reads."""

    name: str
    version: str
    extensions: list[str]


class RefusalBody(TypedDict):
    """The body of an unsuccessful answer, which has more fields if it is from Slipway."""

    error: str
    reason: NotRequired[str]


class TrafficSample(TypedDict):
    """One request of a client with its answer, as repository.core.golden reads them."""

    version: int
    request: JsonObject
    answer: JsonObject


class TrafficSamples(TypedDict):
    """The answer to POST /v2/slipway/models/{model}/sample. skipped: requests that cannot be examples, by reason."""

    samples: list[TrafficSample]
    skipped: dict[str, int]  # too_large, failed, unfit
    seconds: float


class Mismatch(TypedDict):
    """A request that the arms of a rollout answered differently; tensors in the JSON of repository.core.tensors."""

    id: int
    at: float  # Unix seconds
    score: float | None  # None: infinite
    inputs: list[JsonObject]
    stable: list[JsonObject]
    candidate: list[JsonObject]
    detail: str


class ToldRequest(TypedDict):
    """A request that stood out (serving.telemetry.noted_requests). at: in Unix seconds. Times in us, None if not measured."""

    at: float
    id: str
    duration_us: int
    queue_us: int | None
    input_us: int | None
    infer_us: int | None
    output_us: int | None
    rows: int
    batch_size: int | None
    arm: str
    trace: str
    code: str
    reason: str
    cause: str
    message: str


class ToldCause(TypedDict):
    """Failures of one cause in a span. first, last: in Unix seconds."""

    cause: str
    code: str
    reason: str
    count: int
    first: float
    last: float


class NotedSpan(TypedDict):
    """The requests of a version that stood out in a span. start, end: in Unix seconds."""

    model: str
    version: str
    number: int
    start: float
    end: float
    slow: list[ToldRequest]
    failed: list[ToldRequest]
    causes: list[ToldCause]


class NotedAnswer(TypedDict):
    """The answer to GET /v2/slipway/requests. instance: the process, in which the numbers of spans grow."""

    instance: str
    spans: list[NotedSpan]


class MemoryPart(TypedDict):
    """What instances of a version hold on a device ("host", "gpu:0"). basis: measured, growth or files."""

    device: str
    bytes: int
    basis: str
    instances: list[str]


class MemoryNeeds(TypedDict):
    """What a version held when it was last loaded. The keys of gpu_bytes are the numbers of GPUs."""

    host_bytes: int
    gpu_bytes: dict[str, int]


class MemoryOfVersion(TypedDict):
    """A version that is or was loaded. kept_by: why the server may not free it: pinned, requests or loading; "" if it may."""

    name: str
    namespace: str
    version: str
    state: str
    asleep: bool
    mode: str
    kept_by: str
    last_inference_ms: int  # Unix time; 0 if there was no request
    parts: list[MemoryPart]
    needs: MemoryNeeds | None


class MemoryOfDevice(TypedDict):
    """The bytes of a device. server: of all processes of the server. budget: 0 for none; budget_*: what the budget counts."""

    device: str
    where: str
    total: int
    available: int
    server: int
    measured: bool
    budget: int
    budget_kept: int
    budget_evictable: int


class MemoryMap(TypedDict):
    """The answer to GET /v2/slipway/memory."""

    devices: list[MemoryOfDevice]
    models: list[MemoryOfVersion]


class StatisticsAnswer(TypedDict):
    """The answer of the statistics extension: a row for each version, with Triton's names."""

    model_stats: list[JsonObject]


class IndexRow(TypedDict):
    """One version of a model in the repository index, or a model without versions because it was never loaded."""

    name: str
    version: NotRequired[str]
    state: NotRequired[str]  # shared.choices.ModelStatus
    reason: NotRequired[str]
    condition: NotRequired[str]  # repository.core.condition.Condition
    failed: NotRequired[bool]  # its last load failed
    release: NotRequired[int]  # the number of the release that serves
    loading: NotRequired[Loading]


class Hello(TypedDict):
    """The first event of a feed. started: in Unix seconds. bounds_us: the exclusive upper bounds of the buckets."""

    server_id: str
    instance: str  # the id of the process; each process has a new one
    started: float
    bounds_us: list[int]


class Duration(TypedDict):
    """A number of events, and the sum of their nanoseconds."""

    count: int
    ns: int


class Latency(TypedDict):
    """A histogram of durations; the keys of `counts` are the numbers of buckets, as text."""

    total: int
    sum_ns: int
    counts: dict[str, int]


class Memory(TypedDict, total=False):
    """Bytes that a version holds on the host, and on each GPU by its UUID."""

    host_bytes: int
    gpu_bytes: dict[str, int]
    basis: str


class InstanceCounters(TypedDict):
    """The cumulative counters of one instance of a version that has several."""

    success: int
    fail: int
    inference_count: int
    execution_count: int
    compute_ns: int
    request_latency: Latency


class VersionCounters(TypedDict):
    """The cumulative counters of one version of a model, and its state."""

    name: str
    version: str
    state: str
    condition: NotRequired[str]
    failed: NotRequired[bool]
    pending: int
    in_flight: int
    memory: NotRequired[Memory | None]
    success: Duration
    fail: Duration
    cancel: Duration
    mirrored: NotRequired[int]
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    inference_count: int
    execution_count: int
    failures: dict[str, int]  # Triton's reason -> requests
    cache_hits: int
    cache_misses: int
    batches: dict[str, int]  # batch size -> executions
    batch_times: NotRequired[dict[str, int]]  # batch size -> ns of all its executions
    request_latency: Latency
    queue_latency: Latency
    compute_latency: Latency
    arrival_gaps: NotRequired[Latency]
    instances: NotRequired[dict[str, InstanceCounters]]  # by label; none if there is only one


class Gpu(TypedDict):
    """One GPU: utilization from 0 to 1, memory in bytes, power in watts, or None if the driver does not report it."""

    uuid: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None
    power_w: float | None


class ProcessUsage(TypedDict):
    """The resources of the server's process and its children: resident bytes, CPU seconds since their start, threads."""

    rss_bytes: int
    cpu_seconds: float
    threads: int
    gpus: list[Gpu]


class Stats(TypedDict):
    """Every later event of a feed: the versions whose counters have changed. time: in Unix seconds of the server's clock."""

    time: float
    server: ProcessUsage
    unserved: NotRequired[dict[str, int]]  # model -> cumulative number of requests for which no version was serving
    models: list[VersionCounters]
    # A TrafficReport of each rollout that has changed. Each is checked separately, so that a malformed one is dropped alone.
    traffic: NotRequired[list[TrafficHead]]


@dataclass(frozen=True, slots=True)
class HelloEvent:
    data: Hello


@dataclass(frozen=True, slots=True)
class StatsEvent:
    data: Stats


FeedEvent = HelloEvent | StatsEvent

"""What an inference server tells the dashboard, as JSON gives it: rows of the repository index and events of the live feed.

The index is Triton's (model repository extension, "Index"); the live feed is Slipway's own (GET /v2/slipway/live), and what it
adds to the index, too. A server of another make leaves out what is marked NotRequired.
"""

from dataclasses import dataclass
from typing import NotRequired, TypedDict

from dashboard.models.release import CheckStep
from repository.core.json_types import JsonObject


class Loading(TypedDict):
    """How far a load is that is under way. release: its number, None where the configuration says none."""

    release: int | None
    step: str  # check, memory, load, warm, golden, switch, drain
    done: int
    of: int


class LoadAnswer(TypedDict, total=False):
    """What Slipway answers to a load; another make answers nothing."""

    release: int | None
    steps: list[CheckStep]


class TrafficHead(TypedDict):
    """What every word on a rollout begins with. rollout: None where the model is at none."""

    model: str
    namespace: NotRequired[str]
    rollout: str | None


class ServerMetadata(TypedDict, total=False):
    """What of a server's metadata is read."""

    version: str


class RefusalBody(TypedDict):
    """What a server says with a status that is no success; a server of ours says more beside it."""

    error: str
    reason: NotRequired[str]


class TrafficSample(TypedDict):
    """One request of a client with its answer, as repository.core.golden reads them."""

    version: int
    request: JsonObject
    answer: JsonObject


class TrafficSamples(TypedDict):
    """What Slipway answers to POST /v2/slipway/models/{model}/sample. skipped: requests that can be no example, by reason."""

    samples: list[TrafficSample]
    skipped: dict[str, int]  # too_large, failed, unfit
    seconds: float


class Mismatch(TypedDict):
    """A request that both arms of a rollout answered, and not alike; tensors as repository.core.tensors writes them."""

    id: int
    at: float  # Unix seconds
    score: float | None  # None: beyond all numbers
    inputs: list[JsonObject]
    stable: list[JsonObject]
    candidate: list[JsonObject]
    detail: str


class IndexRow(TypedDict):
    """One version of a model in the repository index, or a model without one, which was never loaded."""

    name: str
    version: NotRequired[str]
    state: NotRequired[str]  # shared.choices.ModelStatus
    reason: NotRequired[str]
    condition: NotRequired[str]  # repository.core.condition.Condition
    failed: NotRequired[bool]  # its last load failed
    release: NotRequired[int]  # the number of the release that serves
    loading: NotRequired[Loading]


class Hello(TypedDict):
    """The first event of a feed. `started` is in Unix seconds, `bounds_us` are the exclusive upper bounds of the buckets."""

    server_id: str
    instance: str  # another one for each process
    started: float
    bounds_us: list[int]


class Duration(TypedDict):
    """How often something took place, and how many nanoseconds it took in all."""

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
    request_latency: Latency
    queue_latency: Latency
    compute_latency: Latency


class Gpu(TypedDict):
    """One GPU: utilization from 0 to 1, memory in bytes, power in watts; None where the driver does not tell."""

    uuid: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None
    power_w: float | None


class ProcessUsage(TypedDict):
    """What the server's process and its children use: resident bytes, CPU seconds since their start, threads."""

    rss_bytes: int
    cpu_seconds: float
    threads: int
    gpus: list[Gpu]


class Stats(TypedDict):
    """Every later event of a feed: the versions whose counters have changed. `time` is in Unix seconds, by the server."""

    time: float
    server: ProcessUsage
    unserved: NotRequired[dict[str, int]]  # model -> requests that found none of its versions serving, cumulative
    models: list[VersionCounters]
    # A TrafficReport of each rollout of which something has changed: one that is not understood keeps none of the others back.
    traffic: NotRequired[list[TrafficHead]]


@dataclass(frozen=True, slots=True)
class HelloEvent:
    data: Hello


@dataclass(frozen=True, slots=True)
class StatsEvent:
    data: Stats


FeedEvent = HelloEvent | StatsEvent

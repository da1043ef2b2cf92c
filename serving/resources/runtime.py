"""The objects that all models of one server share."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from serving.cli.option_values import Cores
from serving.core.errors import unavailable
from serving.core.in_flight import InFlightRequest
from serving.extensions.classification import Labels
from serving.resources.allocator import MemoryReturn
from serving.resources.child_watch import ChildWatch
from serving.resources.custom_metrics import CustomMetrics
from serving.resources.loop_time import LoopTime
from serving.resources.memory import ChildMemory, MemoryMeter
from serving.resources.rate_limiter import RateLimiter
from serving.resources.response_cache import ResponseCache

HEARTBEAT_TIMEOUT_S = 60.0

P = ParamSpec("P")
T = TypeVar("T")


class ModelControl(Protocol):
    """Loads, unloads and checks other models for a model. The server implements this protocol, on the loop's thread."""

    async def load_model(self, name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> object: ...

    async def unload_model(self, name: str, unload_dependents: bool = False) -> None: ...

    async def confirm_model_ready(self, name: str, version: str = "") -> bool: ...


@dataclass(frozen=True, slots=True)
class Runtime:
    """infer: queues a request with its model. infer_step: queues the request of an ensemble's step; its first argument is the
    namespace of the ensemble. executor: does slow work off the loop."""

    loop: asyncio.AbstractEventLoop
    executor: Executor
    infer: Callable[[InFlightRequest], None]
    infer_step: Callable[[str, InFlightRequest], None]
    strict_devices: bool = False
    checks_memory: bool = True  # True if a model that cannot fit is refused before it is loaded
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S  # a process without a heartbeat for this time is replaced
    cache: ResponseCache | None = None
    limiter: RateLimiter | None = None
    host_policies: Mapping[str, Cores] = field(default_factory=dict)
    meter: MemoryMeter = field(default_factory=MemoryMeter)
    memory_return: MemoryReturn = field(default_factory=MemoryReturn)
    child_memory: ChildMemory = field(default_factory=ChildMemory)
    child_watch: ChildWatch = field(default_factory=ChildWatch)
    loop_time: LoopTime = field(default_factory=LoopTime)
    control: ModelControl | None = None
    metrics: CustomMetrics = field(default_factory=CustomMetrics)
    summaries: bool = False  # True if models keep the histograms for the summaries of /metrics
    # Returns the labels of a step's model: (namespace, name, version) -> labels.
    step_labels: Callable[[str, str, int], Labels] | None = None
    # Whether models have a histogram of first responses. None: only decoupled models have one.
    first_responses: bool | None = None

    async def in_thread(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """Call a function that reads files, on a worker thread, and return its result."""
        run = partial(copy_context().run, function)  # the call's log lines have the model's mark
        try:
            called = self.loop.run_in_executor(self.executor, partial(run, *arguments, **named))
        except RuntimeError:  # the executor is closed
            raise unavailable("the server is shutting down") from None
        return await called

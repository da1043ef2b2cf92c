"""Counters of TorchServe's APIs: answers by status, and each model's predictions with their latency and time in the queue.

`model_version` is "default" unless the client names a version. All methods run on the event loop's thread.
"""

import time
from collections.abc import Iterator

from serving.core.in_flight import Execution, InFlightRequest
from serving.core.response import Answer

DEFAULT_VERSION = "default"


class ModelSeries:
    """Counts the predictions of one model under one version name, as an observer of each prediction."""

    __slots__ = ("handler_ns", "latency_ns", "model", "observers", "queue_ns", "requests", "shared", "version")

    def __init__(self, model: str, version: str, shared: "InferenceMetrics") -> None:
        self.model = model
        self.version = version
        self.shared = shared
        self.requests = 0
        self.latency_ns = 0
        self.queue_ns = 0
        self.handler_ns = 0  # the time in the handler at the last execution
        self.observers = (self,)

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        started = execution.started_ns
        infer_from = execution.input_done_ns or started
        infer_to = execution.infer_done_ns or execution.ended_ns
        self.queue_ns += started - request.queued_ns
        self.handler_ns = infer_to - infer_from
        self.shared.last_queue_ns = started - request.queued_ns
        self.shared.last_overhead_ns = execution.ended_ns - started - self.handler_ns

    def step(self, child: InFlightRequest) -> None:
        """Do nothing, because steps of an ensemble are not counted."""

    def context(self) -> str:
        return ""

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        if final:
            self.requests += 1
            self.latency_ns += time.monotonic_ns() - request.arrival_ns


class InferenceMetrics:
    """The counters of one server's TorchServe APIs. replies: how many answers there were with statuses 0xx, 1xx, 2xx, ..."""

    def __init__(self) -> None:
        self.replies = [0] * 10
        self.last_queue_ns = 0  # the time in the queue of the last executed request
        self.last_overhead_ns = 0  # the time outside of the handler at the last execution
        self._series: dict[tuple[str, str], ModelSeries] = {}

    def count_reply(self, status: int) -> None:
        self.replies[status // 100 % 10] += 1

    def series(self, model: str, version: str = "") -> ModelSeries:
        """Return the series of a model, which has to exist. version: the version as the client names it."""
        key = model, version or DEFAULT_VERSION
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = ModelSeries(*key, self)
        return found

    def all_series(self) -> Iterator[ModelSeries]:
        return iter(self._series.values())

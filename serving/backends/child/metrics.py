"""The custom metrics of one child: maps the child's numbers to series, and removes the series when it has ended."""

from collections import Counter
from collections.abc import Mapping

from serving.backends.base.backend import ModelSpec
from serving.backends.channel.messages import (
    AnswerBody,
    MetricChange,
    MetricDeleted,
    MetricFamilyDeleted,
    MetricValue,
    NewMetric,
    NewMetricFamily,
)
from serving.backends.channel.tensors import Memory
from serving.backends.child.codec import Handler
from serving.core.errors import unavailable
from serving.resources.custom_metrics import CustomMetrics, Series

MAX_METRICS = 1000


class ChildMetrics:
    """Keeps one child's metrics. Its `handlers` are called on the thread that reads the child's link."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._metrics: dict[int, tuple[str, Series]] = {}
        self._families: Counter[str] = Counter()  # how many objects the model has for each family
        self.handlers: Mapping[str, Handler] = {
            "metric_family": self._family,
            "metric": self._metric,
            "metric_change": self._change,
            "metric_value": self._value,
            "metric_deleted": self._metric_deleted,
            "metric_family_deleted": self._family_deleted,
        }

    def close(self) -> None:
        """Remove all metrics of the child, because it has ended."""
        if self._spec.runtime is not None:
            self._spec.runtime.metrics.leave(self)

    @property
    def _shared(self) -> CustomMetrics:
        return self._spec.require_runtime().metrics

    def _family(self, message: NewMetricFamily, memory: Memory) -> AnswerBody:
        name = message["name"]
        self._shared.add_family(self, name, message["description"], message["kind"])
        self._families[name] += 1
        return {"value": None}

    def _metric(self, message: NewMetric, memory: Memory) -> AnswerBody:
        number = message["number"]
        if not isinstance(number, int) or len(self._metrics) >= MAX_METRICS:
            raise unavailable(f"a model may have at most {MAX_METRICS} metrics")
        self._metrics[number] = self._shared.add_series(self, message["family"], message["labels"], message["buckets"])
        return {"value": None}

    def _change(self, message: MetricChange, memory: Memory) -> None:
        kind, series = self._metrics[message["number"]]
        self._shared.change(kind, series, message["how"], message["value"])

    def _value(self, message: MetricValue, memory: Memory) -> AnswerBody:
        return {"value": self._metrics[message["number"]][1].value}

    def _metric_deleted(self, message: MetricDeleted, memory: Memory) -> None:
        _, series = self._metrics.pop(message["number"])
        if all(other is not series for _, other in self._metrics.values()):
            self._shared.leave_series(self, series)

    def _family_deleted(self, message: MetricFamilyDeleted, memory: Memory) -> None:
        name = message["name"]
        self._families[name] -= 1
        if self._families[name] == 0:
            self._shared.leave_family(self, name)

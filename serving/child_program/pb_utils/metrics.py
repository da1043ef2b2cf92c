"""pb_utils.MetricFamily and its Metric: custom metrics, which the server shows with its own while the model is loaded.

Changes are sent without waiting for an answer, so this module itself refuses values that the server would refuse.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import cast

from serving.backends.channel.messages import (
    MetricChange,
    MetricDeleted,
    MetricFamilyDeleted,
    MetricValue,
    NewMetric,
    NewMetricFamily,
)
from serving.child_program.link.errors import TritonModelException
from serving.child_program.pb_utils.process import server

_numbers = itertools.count(1)


class MetricKind(Enum):
    """The kinds of metrics, with the server's names as values."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric:
    """A handle of one series. Metrics with the same name and labels share a series, which is removed with the last of them."""

    def __init__(self, family: "MetricFamily", labels: dict[str, str], buckets: list[float] | None) -> None:
        self._family = family  # a metric keeps its family alive
        self._kind = family._kind
        self._number = next(_numbers)
        self._link = server()
        message: NewMetric = {
            "op": "metric",
            "number": self._number,
            "family": family._name,
            "labels": labels,
            "buckets": buckets,
        }
        self._link.ask(message)
        self._made = True

    def __del__(self) -> None:
        if getattr(self, "_made", False):
            deleted: MetricDeleted = {"op": "metric_deleted", "number": self._number}
            self._link.tell_later(deleted)

    def increment(self, value: float) -> None:
        """Add a value, which must not be negative for a counter."""
        if self._kind is MetricKind.COUNTER and value < 0:
            raise TritonModelException(f"a counter cannot be incremented by {value}: it never falls")
        self._change("increment", value, MetricKind.COUNTER, MetricKind.GAUGE)

    def set(self, value: float) -> None:
        self._change("set", value, MetricKind.GAUGE)

    def observe(self, value: float) -> None:
        self._change("observe", value, MetricKind.HISTOGRAM)

    def value(self) -> float:
        if self._kind is MetricKind.HISTOGRAM:
            raise TritonModelException("a histogram has no single value")
        question: MetricValue = {"op": "metric_value", "number": self._number}
        return float(cast("float", self._link.ask(question)))

    def _change(self, how: str, value: float, *kinds: MetricKind) -> None:
        if self._kind not in kinds:
            raise TritonModelException(f"a {self._kind.value} has no '{how}'")
        number = float(value)
        if not math.isfinite(number):
            raise TritonModelException(f"a metric takes finite numbers, not {number}")
        change: MetricChange = {"op": "metric_change", "number": self._number, "how": how, "value": number}
        self._link.tell(change)


class MetricFamily:
    """The name, description and kind of a metric. Each `Metric` of the family is one series."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._name = str(name)
        self._kind = MetricKind(kind)
        self._link = server()
        message: NewMetricFamily = {
            "op": "metric_family",
            "name": self._name,
            "description": str(description),
            "kind": self._kind.value,
        }
        self._link.ask(message)
        self._made = True

    def __del__(self) -> None:
        if getattr(self, "_made", False):
            deleted: MetricFamilyDeleted = {"op": "metric_family_deleted", "name": self._name}
            self._link.tell_later(deleted)

    def Metric(self, labels: Mapping[object, object] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """Make a series of this family. buckets: upper bounds in rising order; only histograms have and need them."""
        named = {str(name): str(value) for name, value in (labels or {}).items()}
        return Metric(self, named, None if buckets is None else [float(bound) for bound in buckets])

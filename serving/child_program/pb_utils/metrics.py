"""pb_utils.MetricFamily and its Metric: custom metrics that the server shows beside its own while the model is loaded.

A change is sent and not waited for; what the server will refuse is refused here already.
"""

import itertools
import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

from serving.child_program.pb_utils.errors import TritonModelException
from serving.child_program.server_link import server

_numbers = itertools.count(1)


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric:
    """One series: made by MetricFamily.Metric. Two of equal names and labels are one series, which goes with both."""

    def __init__(self, family: "MetricFamily", labels: dict[str, str], buckets: list[float] | None) -> None:
        self._family = family  # which lives as long as this
        self._kind = family._kind
        self._number = next(_numbers)
        self._link = server()
        self._link.ask(
            {"op": "metric", "number": self._number, "family": family._name, "labels": labels, "buckets": buckets}
        )
        self._made = True

    def __del__(self) -> None:
        if getattr(self, "_made", False):
            self._link.tell_later({"op": "metric_deleted", "number": self._number})

    def increment(self, value: float) -> None:
        """A counter grows by a value that is not negative; a gauge by any value."""
        if self._kind is MetricKind.COUNTER and value < 0:
            raise TritonModelException(f"a counter cannot be incremented by {value}: it never falls")
        self._change("increment", value, MetricKind.COUNTER, MetricKind.GAUGE)

    def set(self, value: float) -> None:
        self._change("set", value, MetricKind.GAUGE)

    def observe(self, value: float) -> None:
        self._change("observe", value, MetricKind.HISTOGRAM)

    def value(self) -> float:
        """Of a counter or gauge."""
        if self._kind is MetricKind.HISTOGRAM:
            raise TritonModelException("a histogram has no single value")
        return float(self._link.ask({"op": "metric_value", "number": self._number}))

    def _change(self, how: str, value: float, *kinds: MetricKind) -> None:
        if self._kind not in kinds:
            raise TritonModelException(f"a {self._kind.value} has no '{how}'")
        number = float(value)
        if not math.isfinite(number):
            raise TritonModelException(f"a metric takes finite numbers, not {number}")
        self._link.tell({"op": "metric_change", "number": self._number, "how": how, "value": number})


class MetricFamily:
    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._name = str(name)
        self._kind = MetricKind(kind)
        self._link = server()
        self._link.ask(
            {"op": "metric_family", "name": self._name, "description": str(description), "kind": self._kind.value}
        )
        self._made = True

    def __del__(self) -> None:
        if getattr(self, "_made", False):
            self._link.tell_later({"op": "metric_family_deleted", "name": self._name})

    def Metric(self, labels: dict[str, Any] | None = None, buckets: Sequence[float] | None = None) -> Metric:
        """`buckets`, rising upper bounds and perhaps none, belong to histograms and to them alone."""
        named = {str(name): str(value) for name, value in (labels or {}).items()}
        return Metric(self, named, None if buckets is None else [float(bound) for bound in buckets])

"""One measured value, in the older API of metrics."""

import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .dimension import Dimension
from .unit import Units

_UNITS = Units().units


class Metric:
    def __init__(
        self,
        name: str,
        value: float,
        unit: str,
        dimensions: Sequence[Dimension],
        request_id: str | None = None,
        metric_method: str | None = None,
    ) -> None:
        self.name = name
        self.value = value
        self.unit = _UNITS.get(unit, unit)
        self.dimensions = dimensions
        self.request_id = request_id
        self.metric_method = metric_method

    def update(self, value: float) -> None:
        """Take another value: a counter adds it, other metrics replace their value."""
        self.value = self.value + value if self.metric_method == "counter" else value

    def reset(self) -> None:
        self.value = 0

    def __str__(self) -> str:
        dimensions = ",".join(map(str, self.dimensions))
        line = f"{self.name}.{self.unit}:{self.value}|#{dimensions}|#hostname:{socket.gethostname()},{int(time.time())}"
        return f"{line},{self.request_id}" if self.request_id else line

    def to_dict(self) -> dict[str, Any]:
        return OrderedDict(
            MetricName=self.name,
            Value=self.value,
            Unit=self.unit,
            Dimensions=[dimension.to_dict() for dimension in self.dimensions],
            Timestamp=int(time.time()),
            HostName=socket.gethostname(),
            RequestId=self.request_id,
        )

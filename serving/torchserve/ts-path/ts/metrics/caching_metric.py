"""A metric that passes each value to listeners, such as the listener that sends values to the server."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from .dimension import Dimension
from .metric_abstract import MetricAbstract
from .metric_type_enum import MetricTypes

logger = logging.getLogger(__name__)

Listener = Callable[["CachingMetric", "tuple[str, ...]", float], None]
"""A function that is called with a metric, the values of its dimensions, and a value."""

_listeners: list[Listener] = []


def listen(listener: Listener) -> None:
    """Call a listener with each value from now on. The server uses this, not handlers."""
    _listeners.append(listener)


class CachingMetric(MetricAbstract):
    def add_or_update(self, value: float, dimension_values: Sequence[Any] = (), request_id: str = "") -> None:
        """Take a value. An invalid value (a counter would fall, or dimensions are missing) is logged and left out."""
        if self.metric_type is MetricTypes.COUNTER and value < 0:
            logger.error("metric %s is a counter and cannot take %s: it never falls", self.metric_name, value)
            return
        if len(dimension_values) != len(self.dimension_names):
            logger.error(
                "metric %s has the dimensions %s, not %s", self.metric_name, self.dimension_names, dimension_values
            )
            return
        if _listeners:
            values = tuple(map(str, dimension_values))
            try:
                number = float(value)  # the value may also be a number as text
            except (TypeError, ValueError):
                logger.error("metric %s cannot take %r: it is no number", self.metric_name, value)
                return
            for listener in _listeners:
                listener(self, values, number)

    def update(self, value: float, request_id: str = "", dimensions: Sequence[Dimension] = ()) -> None:
        """Take a value. This is the older form of `add_or_update`."""
        self.add_or_update(value, [dimension.value for dimension in dimensions], request_id)

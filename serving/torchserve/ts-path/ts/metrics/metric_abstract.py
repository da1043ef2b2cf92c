"""A metric with a name, a unit, names of dimensions and a kind, which takes values."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from .metric_type_enum import MetricTypes
from .unit import Units

_UNITS = Units().units


class MetricAbstract(ABC):
    def __init__(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] | None = None,
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        self.metric_name = metric_name
        self.unit = _UNITS.get(unit, unit)
        self.dimension_names = list(dimension_names or [])
        self.metric_type = metric_type

    @abstractmethod
    def add_or_update(self, value: float, dimension_values: Sequence[Any], request_id: str = "") -> None:
        """Take a value for these values of the dimensions."""

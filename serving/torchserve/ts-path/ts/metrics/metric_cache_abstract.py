"""`context.metrics`: the metrics of a handler, which are created at their first use, and can be looked up by name."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from .caching_metric import CachingMetric
from .dimension import Dimension
from .metric_cache_errors import MetricsCacheKeyError, MetricsCacheTypeError, MetricsCacheValueError
from .metric_type_enum import MetricTypes

_SIZES = ("MB", "kB", "GB", "B")
_TIMES = ("ms", "s")


class MetricCacheAbstract(ABC):
    """Keeps the metrics by kind and name. `add_metric` adds the dimensions ModelName and Level where they are missing."""

    def __init__(self, config_file_path: str | None) -> None:
        self.cache: dict[MetricTypes, dict[str, CachingMetric]] = {}
        self.store: list[Any] = []
        self.request_ids: Mapping[int, str] | str | None = None
        self.model_name: str | None = None
        self.config_file_path = config_file_path

    @abstractmethod
    def initialize_cache(self) -> None:
        """Create the metrics that the configuration names."""

    def set_request_ids(self, request_ids: Mapping[int, str] | str | None) -> None:
        self.request_ids = request_ids

    # -- by name and value ---------------------------------------------------------------------------------------------
    def add_metric(
        self,
        name: str,
        value: float,
        unit: str,
        idx: Any = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> None:
        """Take a value of a metric. Create the metric if there is no metric of that name and kind."""
        given = self._with_defaults(dimensions)
        metric = self._found_or_made(name, unit, [one.name for one in given], metric_type)
        metric.add_or_update(value, [one.value for one in given])

    def add_counter(self, name: str, value: float, idx: Any = None, dimensions: Sequence[Dimension] = ()) -> None:
        self.add_metric(name, value, "count", idx, dimensions, MetricTypes.COUNTER)

    def add_time(
        self,
        name: str,
        value: float,
        idx: Any = None,
        unit: str = "ms",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        if unit not in _TIMES:
            raise MetricsCacheValueError(f"the unit of a time must be one of {', '.join(_TIMES)}, not {unit!r}")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_size(
        self,
        name: str,
        value: float,
        idx: Any = None,
        unit: str = "MB",
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        if unit not in _SIZES:
            raise MetricsCacheValueError(f"the unit of a size must be one of {', '.join(_SIZES)}, not {unit!r}")
        self.add_metric(name, value, unit, idx, dimensions, metric_type)

    def add_percent(
        self,
        name: str,
        value: float,
        idx: Any = None,
        dimensions: Sequence[Dimension] = (),
        metric_type: MetricTypes = MetricTypes.GAUGE,
    ) -> None:
        self.add_metric(name, value, "percent", idx, dimensions, metric_type)

    def add_error(self, name: str, value: float, dimensions: Sequence[Dimension] = ()) -> None:
        given = list(dimensions)
        if all(one.name != "Level" for one in given):
            given.append(Dimension("Level", "Error"))
        self._found_or_made(name, "", [one.name for one in given], MetricTypes.COUNTER).add_or_update(
            value, [one.value for one in given]
        )

    # -- by metric -----------------------------------------------------------------------------------------------------
    def get_metric(self, metric_name: str, metric_type: MetricTypes = MetricTypes.COUNTER) -> CachingMetric:
        """Return an existing metric. Raises MetricsCacheKeyError if there is no such metric."""
        _check(metric_name, str, "metric_name", "a str")
        _check(metric_type, MetricTypes, "metric_type", "a MetricTypes enum")
        try:
            return self.cache[metric_type][metric_name]
        except KeyError:
            raise MetricsCacheKeyError(f"there is no {metric_type.value} of the name '{metric_name}'") from None

    def add_metric_to_cache(
        self,
        metric_name: str,
        unit: str,
        dimension_names: Sequence[str] = (),
        metric_type: MetricTypes = MetricTypes.COUNTER,
    ) -> CachingMetric:
        """Create a metric; it replaces any metric of the same name and kind."""
        _check(metric_name, str, "metric_name", "a str")
        _check(unit, str, "unit", "a str")
        _check(dimension_names, (list, tuple), "dimension_names", "a list of dimension names")
        _check(metric_type, MetricTypes, "metric_type", "a MetricTypes enum")
        metric = CachingMetric(metric_name, unit, dimension_names, metric_type)
        self.cache.setdefault(metric_type, {})[metric_name] = metric
        return metric

    def cache_keys(self) -> list[str]:
        """Return the kind and name of all metrics, each as "kind:name"."""
        return [f"{kind.value}:{name}" for kind, metrics in self.cache.items() for name in metrics]

    def _found_or_made(self, name: str, unit: str, names: list[str], kind: MetricTypes) -> CachingMetric:
        metrics = self.cache.get(kind)
        if metrics is not None and name in metrics:
            return metrics[name]
        return self.add_metric_to_cache(name, unit, names, kind)

    def _with_defaults(self, dimensions: Sequence[Dimension]) -> list[Dimension]:
        """Return the dimensions, with ModelName and Level added if they are missing."""
        given = list(dimensions)
        names = [one.name for one in given]
        if "ModelName" not in names:
            given.append(Dimension("ModelName", self.model_name))
        if "Level" not in names:
            given.append(Dimension("Level", "Model"))
        return given


def _check(value: object, kind: Any, what: str, expected: str) -> None:
    if not isinstance(value, kind):
        raise MetricsCacheTypeError(f"`{what}` must be {expected}")

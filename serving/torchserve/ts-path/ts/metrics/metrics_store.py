"""The older API of metrics: values of one batch, kept until they are emitted."""

from collections.abc import Mapping, Sequence
from typing import Any

from .dimension import Dimension
from .metric import Metric


class MetricsStore:
    def __init__(self, request_ids: Mapping[int, str] | str | None, model_name: str) -> None:
        self.store: list[Metric] = []
        self.request_ids = request_ids
        self.model_name = model_name
        self.cache: dict[str, Metric] = {}

    def add_counter(
        self, name: str, value: float, idx: Any = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        self._add(name, value, idx, "count", "counter", dimensions)

    def add_time(
        self, name: str, value: float, idx: Any = None, unit: str = "ms", dimensions: Sequence[Dimension] | None = None
    ) -> None:
        if unit not in ("ms", "s"):
            raise ValueError(f"the unit of a time must be ms or s, not {unit!r}")
        self._add(name, value, idx, unit, None, dimensions)

    def add_size(
        self, name: str, value: float, idx: Any = None, unit: str = "MB", dimensions: Sequence[Dimension] | None = None
    ) -> None:
        if unit not in ("MB", "kB", "GB", "B"):
            raise ValueError(f"the unit of a size must be MB, kB, GB or B, not {unit!r}")
        self._add(name, value, idx, unit, None, dimensions)

    def add_percent(
        self, name: str, value: float, idx: Any = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        self._add(name, value, idx, "percent", None, dimensions)

    def add_error(self, name: str, value: Any, dimensions: Sequence[Dimension] | None = None) -> None:
        self._add(name, value, "ERROR", "", None, dimensions)

    def add_metric(
        self, name: str, value: float, unit: str, idx: Any = None, dimensions: Sequence[Dimension] | None = None
    ) -> None:
        self._add(name, value, idx, unit, None, dimensions)

    def _add(
        self,
        name: str,
        value: Any,
        idx: Any,
        unit: str,
        method: str | None,
        dimensions: Sequence[Dimension] | None,
    ) -> None:
        level = "Error" if idx == "ERROR" else "Model"
        given = [*(dimensions or ()), Dimension("ModelName", self.model_name), Dimension("Level", level)]
        request = self.request_ids.get(idx) if isinstance(self.request_ids, Mapping) and idx is not None else None
        key = "-".join([name, unit, str(request), *map(str, given)])
        if key in self.cache:
            self.cache[key].update(value)
            return
        metric = self.cache[key] = Metric(name, value, unit, given, request, method)
        self.store.append(metric)

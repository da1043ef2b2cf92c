"""A registry of the metrics that Python models define. A series is removed with its last owner.

Owners call from their own threads, and the event loop renders the page, so one lock guards all data. Every argument is checked,
because it comes from the code of a model.
"""

import math
import re
import threading
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate, pairwise

from serving.core.errors import invalid

MAX_FAMILIES = 1000
MAX_SERIES = 10_000  # the most series of one server
MAX_LABELS = 16
MAX_BUCKETS = 100
MAX_TEXT = 500
KINDS = ("counter", "gauge", "histogram")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,99}")
_RESERVED = (
    *("nv_inference_", "nv_cpu_", "nv_gpu_", "nv_cache_", "nv_energy_", "nv_model_", "nv_pinned_"),
    "slipway_",
)


class Series:
    """One series of a family: one line of the page, or several lines for a histogram."""

    def __init__(self, family: "Family", labels: str, bounds: list[float]) -> None:
        self.family = family
        self.labels = labels
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.value = 0.0  # for a histogram, the sum of the values
        self.owners: set[object] = set()

    def lines(self, name: str, kind: str) -> Iterable[str]:
        braces = f"{{{self.labels}}}" if self.labels else ""
        if kind != "histogram":
            return [f"{name}{braces} {self.value:.17g}\n"]
        comma = "," if self.labels else ""
        totals = list(accumulate(self.counts))
        bounds = [*(repr(bound).removesuffix(".0") for bound in self.bounds), "+Inf"]
        lines = [
            f'{name}_bucket{{{self.labels}{comma}le="{bound}"}} {total}\n'
            for bound, total in zip(bounds, totals, strict=True)
        ]
        return [*lines, f"{name}_sum{braces} {self.value:.17g}\n", f"{name}_count{braces} {totals[-1]}\n"]


class Family:
    """A metric family, as Prometheus names it: series of one name and kind with different labels."""

    def __init__(self, name: str, text: str, kind: str) -> None:
        self.name = name
        self.text = text
        self.kind = kind
        self.series: dict[str, Series] = {}
        self.owners: set[object] = set()


class CustomMetrics:
    """The registry of one server. Any thread may call any method. Raises INVALID_ARG, or ValueError in `change`."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._lock = threading.Lock()

    def add_family(self, owner: object, name: object, description: object, kind: object) -> None:
        """Define a family, or become an owner of an existing family of the same kind."""
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith(_RESERVED):
            raise invalid(
                "a metric's name must have letters, digits, '_' and ':' only, and none of the server's prefixes"
            )
        if (
            not isinstance(kind, str)
            or kind not in KINDS
            or not isinstance(description, str)
            or len(description) > MAX_TEXT
        ):
            raise invalid(
                f"metric '{name}' needs a kind of {', '.join(KINDS)} and a description of at most {MAX_TEXT} letters"
            )
        with self._lock:
            family = self._families.get(name)
            if family is None:
                if len(self._families) >= MAX_FAMILIES:
                    raise invalid(f"the server has its {MAX_FAMILIES} custom metric families already")
                text = description.replace("\\", "\\\\").replace("\n", "\\n")
                family = self._families[name] = Family(name, text, kind)
            elif family.kind != kind:
                raise invalid(f"metric '{name}' is a {family.kind} already, not a {kind}")
            family.owners.add(owner)

    def add_series(self, owner: object, family_name: object, labels: object, buckets: object) -> tuple[str, Series]:
        """Return the kind of the family, and its series with these labels, which is created if there is none."""
        text = _label_text(labels)
        with self._lock:
            family = self._families.get(str(family_name))
            if family is None or owner not in family.owners:
                raise invalid("the metric's family is unknown")
            bounds = _bounds(family, buckets)
            series = family.series.get(text)
            if series is None:
                if sum(len(one.series) for one in self._families.values()) >= MAX_SERIES:
                    raise invalid(f"the server has its {MAX_SERIES} custom metrics already")
                series = family.series[text] = Series(family, text, bounds)
            elif series.bounds != bounds:
                raise invalid(f"metric '{family.name}' with these labels has other buckets already")
            series.owners.add(owner)
            return family.kind, series

    def change(self, kind: str, series: Series, how: object, value: object) -> None:
        if not isinstance(value, int | float) or not math.isfinite(value) or (kind, how) not in _CHANGES:
            raise ValueError(f"a {kind} cannot be changed that way")
        if kind == "counter" and value < 0:
            raise ValueError("a counter cannot fall")
        with self._lock:
            if how == "set":
                series.value = value
            else:
                series.value += value
            if how == "observe":
                series.counts[bisect_left(series.bounds, value)] += 1

    def leave_series(self, owner: object, series: Series) -> None:
        """Remove an owner of a series. The series is removed with its last owner."""
        with self._lock:
            _let_go(owner, series)

    def leave_family(self, owner: object, name: str) -> None:
        """Remove an owner of a family and of its series. Families and series are removed with their last owner."""
        with self._lock:
            family = self._families.get(name)
            if family is not None:
                self._leave(owner, family)

    def leave(self, owner: object) -> None:
        """Remove an owner from all families and series. Families and series are removed with their last owner."""
        with self._lock:
            for family in list(self._families.values()):
                self._leave(owner, family)

    def _leave(self, owner: object, family: Family) -> None:
        for series in list(family.series.values()):
            _let_go(owner, series)
        family.owners.discard(owner)
        if not family.owners:
            del self._families[family.name]

    def render(self) -> str:
        """Return all families as Prometheus text."""
        with self._lock:
            parts = []
            for family in self._families.values():
                parts.append(f"# HELP {family.name} {family.text}\n# TYPE {family.name} {family.kind}\n")
                for series in family.series.values():
                    parts += series.lines(family.name, family.kind)
        return "".join(parts)


_CHANGES = {("counter", "increment"), ("gauge", "increment"), ("gauge", "set"), ("histogram", "observe")}


def _let_go(owner: object, series: Series) -> None:
    series.owners.discard(owner)
    if not series.owners:
        series.family.series.pop(series.labels, None)


def _label_text(labels: object) -> str:
    if not isinstance(labels, dict) or len(labels) > MAX_LABELS:
        raise invalid(f"a metric's labels must be at most {MAX_LABELS} names with values")
    parts = []
    for name, value in sorted(labels.items()):
        named = isinstance(name, str) and _LABEL.fullmatch(name) and name != "le"
        if not named or not isinstance(value, str) or len(value) > MAX_TEXT:
            raise invalid("a metric's label needs a name of letters, digits and '_' and a short text as its value")
        text = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        parts.append(f'{name}="{text}"')
    return ",".join(parts)


def _bounds(family: Family, buckets: object) -> list[float]:
    if (family.kind == "histogram") != (buckets is not None):
        raise invalid(f"metric '{family.name}' is a {family.kind}: histograms need buckets, other metrics have none")
    if buckets is None:
        return []
    if not isinstance(buckets, list) or len(buckets) > MAX_BUCKETS:
        raise invalid(f"a histogram's buckets must be a list of at most {MAX_BUCKETS} numbers")
    if not all(isinstance(bound, int | float) and math.isfinite(bound) for bound in buckets):
        raise invalid("a histogram's buckets must be finite numbers")
    if any(low >= high for low, high in pairwise(buckets)):
        raise invalid("a histogram's buckets must rise")
    return [float(bound) for bound in buckets]

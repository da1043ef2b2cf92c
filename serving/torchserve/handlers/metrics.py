"""Sends the metrics of a handler to the server, once a second, so that a batch causes no separate message.

The metrics in metrics.yaml are sent. With auto-detection, all other metrics are sent too. The labels are the metric's
dimensions, and Hostname.
Source: pytorch/serve, docs/metrics.md.
"""

import logging
import math
import socket
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from serving.backends.channel.channel import ChannelError
from serving.backends.channel.messages import MetricChange, NewMetric, NewMetricFamily
from serving.child_program.link.errors import TritonModelException
from serving.child_program.link.server_link import ServerLink

if TYPE_CHECKING:
    from ts.metrics.caching_metric import CachingMetric

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
MAX_OBSERVED = 1000  # the most values of one histogram that wait for the next message
MAX_SERIES = 1000  # the most series of one process; labels with a new value for each request would never end
# The defaults of Prometheus' client for Java, which TorchServe uses.
_BUCKETS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]

_Series = tuple[str, str, tuple[str, ...], tuple[str, ...]]
"""The kind and name of a metric, and the names and values of its dimensions."""


class MetricExporter:
    """Gets all values of metrics in `ts`, and sends them to the server from a thread."""

    def __init__(self, link: ServerLink, wanted: "set[tuple[str, str]] | None") -> None:
        """wanted: the kind and name of each metric to send, or None for all metrics."""
        from ts.metrics import caching_metric

        self._link = link
        self._wanted = wanted
        self._values: dict[_Series, float] = {}  # a counter's growth since the last message, or a gauge's value
        self._observed: dict[_Series, list[float]] = {}
        self._units: dict[str, str] = {}
        self._numbers: dict[_Series, int] = {}  # the server's number of each series; 0 for a series that it refused
        self._families: set[str] = set()
        self._full = False  # whether a series was left out
        self._changed = threading.Event()
        self._lock = threading.Lock()
        caching_metric.listen(self._take)
        threading.Thread(target=self._run, name="metrics", daemon=True).start()

    def gauge(self, name: str, unit: str, labels: Mapping[str, str]) -> Callable[[float], None] | None:
        """Return a function that sets a gauge in addition to the handler's metrics, or None if that gauge is not sent."""
        if self._wanted is not None and ("gauge", name) not in self._wanted:
            return None
        series = "gauge", name, tuple(labels), tuple(labels.values())
        self._units[name] = unit

        def take(value: float) -> None:
            with self._lock:
                self._values[series] = value
            self._changed.set()

        return take

    def _take(self, metric: "CachingMetric", values: tuple[str, ...], value: float) -> None:
        """Keep a value until the next message. Any thread may call this."""
        kind = metric.metric_type.value
        if (self._wanted is not None and (kind, metric.metric_name) not in self._wanted) or not math.isfinite(value):
            return
        series = kind, metric.metric_name, tuple(metric.dimension_names), values
        with self._lock:
            known = series in self._values or series in self._observed
            if not known and len(self._values) + len(self._observed) > MAX_SERIES:
                return
            self._units[metric.metric_name] = metric.unit
            if kind == "histogram":
                observed = self._observed.setdefault(series, [])
                if len(observed) < MAX_OBSERVED:
                    observed.append(float(value))
            elif kind == "counter":
                self._values[series] = self._values.get(series, 0.0) + value
            else:
                self._values[series] = float(value)
        self._changed.set()

    # -- on its own thread ---------------------------------------------------------------------------------------------
    def _run(self) -> None:
        wait = threading.Event().wait
        while self._changed.wait():
            self._changed.clear()
            with self._lock:
                values, self._values = self._values, {}
                observed, self._observed = self._observed, {}
            try:
                for series, value in values.items():
                    self._change(series, "increment" if series[0] == "counter" else "set", value)
                for series, found in observed.items():
                    for value in found:
                        self._change(series, "observe", value)
            except ChannelError:  # the server has gone
                return
            wait(INTERVAL_S)

    def _change(self, series: _Series, how: str, value: float) -> None:
        number = self._numbers.get(series)
        if number is None:
            if len(self._numbers) >= MAX_SERIES:
                self._say_full(series[1])
                return
            number = self._numbers[series] = self._make_series(series)
        if number:
            change: MetricChange = {"op": "metric_change", "number": number, "how": how, "value": value}
            self._link.tell(change)

    def _say_full(self, name: str) -> None:
        if not self._full:
            log.warning("metrics of %s and others are left out: a handler may have at most %d series", name, MAX_SERIES)
        self._full = True

    def _make_series(self, series: _Series) -> int:
        """Make a series, and its family if that is new. Return the number of the series, or 0 if the server refuses it."""
        kind, name, names, values = series
        number = len(self._numbers) + 1
        try:
            if name not in self._families:
                description = f"Torchserve prometheus {kind} metric with unit: {self._units[name]}"
                family: NewMetricFamily = {
                    "op": "metric_family",
                    "name": name,
                    "description": description,
                    "kind": kind,
                }
                self._link.ask(family)
                self._families.add(name)
            labels = {**dict(zip(names, values, strict=True)), "Hostname": socket.gethostname()}
            buckets = _BUCKETS if kind == "histogram" else None
            made: NewMetric = {"op": "metric", "number": number, "family": name, "labels": labels, "buckets": buckets}
            self._link.ask(made)
        except TritonModelException as error:
            log.warning("the metric %s is not kept: %s", name, error)
            return 0
        return number

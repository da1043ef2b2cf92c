"""The custom metrics of one child: what its numbers stand for, and what goes when the model lets go of it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from serving.backends.channel.messages import Unchecked as Message
from serving.core.errors import unavailable
from serving.resources.custom_metrics import Series
from serving.resources.runtime import Runtime

MAX_METRICS = 1000


class ChildMetrics:
    """Used on the thread that reads the child's calls. `answer` tells the child the value of its question."""

    def __init__(self, owner: object, answer: Callable[[Message, Message], None]) -> None:
        self._owner = owner
        self._answer = answer
        self._metrics: dict[int, tuple[str, Series]] = {}
        self._families: Counter[str] = Counter()  # how many objects of the model stand for one
        self.handlers: dict[str, Callable[[Runtime, Message], None]] = {
            "metric_family": self._family,
            "metric": self._metric,
            "metric_change": self._change,
            "metric_value": self._value,
            "metric_deleted": self._metric_deleted,
            "metric_family_deleted": self._family_deleted,
        }

    def _family(self, runtime: Runtime, message: Message) -> None:
        name = message["name"]
        runtime.metrics.add_family(self._owner, name, message["description"], message["kind"])
        self._families[name] += 1
        self._answer(message, {"value": None})

    def _metric(self, runtime: Runtime, message: Message) -> None:
        number = message["number"]
        if not isinstance(number, int) or len(self._metrics) >= MAX_METRICS:
            raise unavailable(f"a model may have {MAX_METRICS} metrics, not more")
        found = runtime.metrics.add_series(self._owner, message["family"], message["labels"], message["buckets"])
        self._metrics[number] = found
        self._answer(message, {"value": None})

    def _change(self, runtime: Runtime, message: Message) -> None:
        kind, series = self._metrics[message["number"]]
        runtime.metrics.change(kind, series, message["how"], message["value"])

    def _value(self, runtime: Runtime, message: Message) -> None:
        self._answer(message, {"value": self._metrics[message["number"]][1].value})

    def _metric_deleted(self, runtime: Runtime, message: Message) -> None:
        _, series = self._metrics.pop(message["number"])
        if all(other is not series for _, other in self._metrics.values()):
            runtime.metrics.leave_series(self._owner, series)

    def _family_deleted(self, runtime: Runtime, message: Any) -> None:
        name = message["name"]
        self._families[name] -= 1
        if self._families[name] == 0:
            runtime.metrics.leave_family(self._owner, name)

"""The rules that decide whether a batch of the dynamic or sequence batcher runs or waits for more requests.

Source: Triton, docs/user_guide/batcher.md (Preferred Batch Sizes, Delayed Batching).
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from serving.core.in_flight import InFlightRequest


class Choice(NamedTuple):
    """The `requests` to run now and their `rows`, or no requests and the time to wait for more (`wait_ns`)."""

    requests: list[InFlightRequest]
    rows: int
    wait_ns: int


class BatchRules(NamedTuple):
    """`max_rows` limits a batch. A batch of a `preferred` size (ascending) runs immediately; others wait up to `delay_ns`."""

    max_rows: int
    preferred: tuple[int, ...] = ()
    delay_ns: int = 0

    def choose(self, waiting: Iterable[InFlightRequest], now_ns: int) -> Choice:
        """Choose the first request, and the next ones as long as they fit and have the same batch key.

        The largest preferred size that the requests can fill runs immediately. Any other batch runs when it cannot grow,
        because it is full or the next request does not fit, or when a request in it is `delay_ns` old.
        """
        forming = FormingBatch(self)
        forming.add(waiting)
        return forming.choose(now_ns)


class FormingBatch:
    """The batch that the requests at the front of a queue would form. `add` does not read earlier requests again."""

    __slots__ = ("_closed", "_preferred_count", "_preferred_rows", "_rules", "requests", "rows")

    def __init__(self, rules: BatchRules) -> None:
        self.requests: list[InFlightRequest] = []
        self.rows = 0
        self._rules = rules
        self._closed = False
        self._preferred_count = self._preferred_rows = 0

    def add(self, waiting: Iterable[InFlightRequest]) -> None:
        """Add further waiting requests until one does not fit."""
        max_rows, preferred, _ = self._rules
        chosen, rows = self.requests, self.rows
        key = chosen[0].batch_key if chosen else None
        for request in waiting:
            size = request.batch_size
            if not chosen:
                key = request.batch_key
            elif rows + size > max_rows or (request.batch_key is not key and request.batch_key != key):
                self._closed = True
                break
            if preferred:
                if chosen and not self._preferred_count and rows + size > preferred[-1]:
                    self._preferred_count, self._preferred_rows = len(chosen), rows  # no larger size can be filled
                if rows + size in preferred:
                    self._preferred_count, self._preferred_rows = len(chosen) + 1, rows + size
            chosen.append(request)
            rows += size
        self.rows = rows

    def choose(self, now_ns: int) -> Choice:
        """Return the requests to run now; see `BatchRules.choose`."""
        chosen, rows, delay_ns = self.requests, self.rows, self._rules.delay_ns
        if not delay_ns:
            if self._preferred_count:
                return Choice(chosen[: self._preferred_count], self._preferred_rows, 0)
            return Choice(chosen, rows, 0)
        if not chosen:
            return Choice(chosen, 0, 0)
        age = now_ns - min(map(_queued_ns, chosen))
        if self._preferred_count and age < delay_ns:
            return Choice(chosen[: self._preferred_count], self._preferred_rows, 0)
        largest = self._rules.preferred[-1] if self._rules.preferred else self._rules.max_rows
        if self._closed or age >= delay_ns or rows >= largest:
            return Choice(chosen, rows, 0)
        return Choice([], 0, delay_ns - age)


_queued_ns = attrgetter("queued_ns")

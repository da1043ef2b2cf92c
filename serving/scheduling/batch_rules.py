"""When a batch is worth running: sizes, preferred sizes, queue delay. Shared by the dynamic and the sequence batcher.

Source: Triton, docs/user_guide/batcher.md (Preferred Batch Sizes, Delayed Batching).
"""

from collections.abc import Iterable
from typing import NamedTuple

from serving.core.in_flight import InFlightRequest


class Choice(NamedTuple):
    """`requests` to run now, `rows` in all; none of them and `wait_ns` when it pays to wait that long for more."""

    requests: list[InFlightRequest]
    rows: int
    wait_ns: int


class BatchRules(NamedTuple):
    """`max_rows` bounds a batch; a `preferred` size (ascending) goes at once; others wait up to `delay_ns`."""

    max_rows: int
    preferred: tuple[int, ...] = ()
    delay_ns: int = 0

    def choose(self, waiting: Iterable[InFlightRequest], now_ns: int) -> Choice:
        """Take requests from the front; the first always, others while they fit and have its key.

        A batch that cannot grow, because it is full or because the next request does not fit, goes at once. Otherwise the
        largest preferred size that can be made does. What is neither waits until its oldest request is `delay_ns` old.
        """
        chosen: list[InFlightRequest] = []
        rows = preferred_count = preferred_rows = 0
        closed = False
        largest = self.preferred[-1] if self.preferred else 0
        for request in waiting:
            size = request.batch_size
            if chosen:
                if rows + size > self.max_rows or request.batch_key != chosen[0].batch_key:
                    closed = True
                    break
                if largest and not preferred_count and rows + size > largest:
                    preferred_count, preferred_rows = len(chosen), rows  # no preferred size can be made any more
            chosen.append(request)
            rows += size
            if rows in self.preferred:
                preferred_count, preferred_rows = len(chosen), rows
        if not chosen:
            return Choice(chosen, 0, 0)
        age = now_ns - min(request.queued_ns for request in chosen) if self.delay_ns else 0
        late = bool(self.delay_ns) and age >= self.delay_ns
        if preferred_count and not late:
            return Choice(chosen[:preferred_count], preferred_rows, 0)
        if closed or late or not self.delay_ns or rows >= (largest or self.max_rows):
            return Choice(chosen, rows, 0)
        return Choice([], 0, self.delay_ns - age)

"""Limits the share of the event loop's time that executions of models may take, because connections need the rest."""

import time

SHARE = 0.5
BURST_NS = 4_000_000.0  # the most time that executions may take after a pause


class LoopTime:
    """A token bucket that fills with `SHARE` of the passing time. Executions on the loop take time out of it. Used on the
    loop's thread.

    in_flight: the number of requests that models have accepted and not yet answered.
    """

    __slots__ = ("_last_ns", "in_flight", "left_ns")

    def __init__(self) -> None:
        self.in_flight = 0
        self.left_ns = BURST_NS  # the time that was left after the last execution
        self._last_ns = 0

    def refilled(self) -> bool:
        """Fill the bucket up to now, and return whether any time is left."""
        self._fill(time.monotonic_ns())
        return self.left_ns > 0

    def spend(self, started_ns: int, ended_ns: int) -> None:
        self._fill(started_ns)
        self.left_ns -= ended_ns - started_ns

    def _fill(self, now_ns: int) -> None:
        left_ns = self.left_ns + (now_ns - self._last_ns) * SHARE
        self.left_ns = left_ns if left_ns < BURST_NS else BURST_NS
        self._last_ns = now_ns

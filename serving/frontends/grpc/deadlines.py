"""The deadlines of calls (grpc-timeout): calls with nearly the same deadline form a group with one timer.

A timer for each call would cost more than parsing all headers of the call, though nearly every call ends long before its
deadline.
"""

import asyncio
import math
from typing import Protocol

_GROUPS = 64  # a call expires late by at most 2 / _GROUPS of its timeout
_SHORTEST_S = 0.001  # shortest time between two groups: the resolution of the event loop's timers


class ExpiringCall(Protocol):
    """A call that has a deadline."""

    def expired(self) -> None:
        """Called at the deadline."""


class Group(dict[ExpiringCall, None]):
    """Calls that expire together. ends_at: their deadline, in the event loop's time."""

    __slots__ = ("ends_at",)

    def __init__(self, ends_at: float) -> None:
        super().__init__()
        self.ends_at = ends_at

    def left_s(self) -> float:
        return self.ends_at - asyncio.get_running_loop().time()


class Deadlines:
    """The deadlines of the calls of a listener. Used on the event loop's thread."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[float, Group] = {}  # by `ends_at`

    def add(self, call: ExpiringCall, timeout_s: float) -> Group:
        """Call `call.expired` after the timeout. Return the call's group. A call that ends earlier must leave the group."""
        loop = asyncio.get_running_loop()
        span_s = max(_SHORTEST_S, math.ldexp(1 / _GROUPS, math.frexp(timeout_s)[1]))
        ends_at = (int((loop.time() + timeout_s) / span_s) + 1) * span_s
        group = self._groups.get(ends_at)
        if group is None:
            group = self._groups[ends_at] = Group(ends_at)
            loop.call_at(ends_at, self._end, ends_at)
        group[call] = None
        return group

    def _end(self, ends_at: float) -> None:
        for call in list(self._groups.pop(ends_at)):
            call.expired()

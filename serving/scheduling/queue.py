"""The queue of a model, with priority levels that each have Triton's queue policy.

Source of the rules: ModelQueuePolicy and ModelDynamicBatching in model_config.proto, and Triton's policy queue. Level 1 runs
first. A request that waited longer than its timeout is rejected or, with DELAY, served after all others of its level.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter

from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

from serving.core.errors import unavailable
from serving.core.in_flight import InFlightRequest

Later = Callable[..., asyncio.TimerHandle]  # (seconds, callback, *arguments)


class _Level:
    """One priority level. `delayed` has the timed-out requests if the policy's action is DELAY."""

    __slots__ = ("delayed", "fresh", "max_size", "number", "policy", "timeout_us")

    def __init__(self, number: int, policy: ModelQueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.max_size: int = policy.max_queue_size
        self.timeout_us: int = policy.default_timeout_microseconds
        self.fresh: deque[InFlightRequest] = deque()
        self.delayed: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)


class RequestQueue:
    """The requests in the order in which they should run. Iterating over the queue removes nothing.

    There may be 2**64 levels, so only level 1 and levels with requests have an object. `timed_out` is called with a request
    that left the queue because it waited too long, or with None if the request was only delayed.

    count: the number of requests. changes: grows with every change, except when a request is appended after all others.
    """

    def __init__(
        self, batching: ModelDynamicBatching, later: Later, timed_out: Callable[[InFlightRequest | None], None]
    ) -> None:
        self.count = 0
        self.changes = 0
        self._later = later
        self._timed_out = timed_out
        self._levels: list[_Level] = []  # sorted by number
        self._level_of: dict[InFlightRequest, _Level] = {}  # empty if there is only one level
        self._timers: dict[InFlightRequest, asyncio.TimerHandle] = {}
        self.configure(batching)

    def __iter__(self) -> Iterator[InFlightRequest]:
        if len(self._levels) == 1 and not self._levels[0].delayed:
            return iter(self._levels[0].fresh)
        return self._through_levels()

    def _through_levels(self) -> Iterator[InFlightRequest]:
        for level in self._levels:
            yield from level.fresh
            yield from level.delayed

    def configure(self, batching: ModelDynamicBatching) -> None:
        """Apply new policies. Requests of a removed level move to the last level. Their timeouts stay."""
        waiting = [(level.number, request) for level in self._levels for request in (*level.fresh, *level.delayed)]
        self._policies = dict(batching.priority_queue_policy) if batching.priority_levels else {}
        self._default_policy = batching.default_queue_policy
        self._several = batching.priority_levels > 1
        self._last = max(1, batching.priority_levels)
        self._default = max(1, batching.default_priority_level)
        self._levels = []
        self._level_of.clear()
        self._level(1)
        self.changes += 1
        for number, request in waiting:
            level = self._level(min(number, self._last))
            level.fresh.append(request)
            if self._several:
                self._level_of[request] = level

    def append(self, request: InFlightRequest) -> None:
        """Queue a request. Raises UNAVAILABLE if its level is full."""
        level = self._level_for(request) if self._several else self._levels[0]
        if level.max_size and len(level) >= level.max_size:
            raise unavailable(f"Exceeds maximum queue size of {level.max_size}")
        level.fresh.append(request)
        self.count += 1
        if self._several:
            self._level_of[request] = level
        if self._several or level.delayed:  # the request may run before others
            self.changes += 1
        if level.timeout_us or request.asked.timeout_us:
            self._start_timer(request, level.policy)

    def first(self) -> InFlightRequest | None:
        """Return the request that should run next, or None if there is none."""
        if not self.count:
            return None
        fresh = self._levels[0].fresh
        return fresh[0] if fresh else next(self._through_levels())

    def take(self, requests: Sequence[InFlightRequest]) -> None:
        """Remove `requests`, the first ones of the queue, to run them."""
        fresh = self._levels[0].fresh
        if self._several or self._timers or len(requests) > len(fresh):
            for request in requests:
                self.remove(request)
            return
        popleft = fresh.popleft
        for _ in requests:
            popleft()
        self.count -= len(requests)
        self.changes += 1

    def remove(self, request: InFlightRequest) -> bool:
        """Remove a request, to run it or because its client left. Return False if the request is not queued."""
        level = self._level_of.pop(request, None) if self._several else self._levels[0]
        if level is None or request.started or not (_removed(level.fresh, request) or _removed(level.delayed, request)):
            return False
        self.count -= 1
        self.changes += 1
        if level.number > 1 and not level:
            del self._levels[bisect_left(self._levels, level.number, key=_number_of)]
        if self._timers:
            timer = self._timers.pop(request, None)
            if timer is not None:
                timer.cancel()
        return True

    def _start_timer(self, request: InFlightRequest, policy: ModelQueuePolicy) -> None:
        timeout = policy.default_timeout_microseconds
        if policy.allow_timeout_override and request.asked.timeout_us:
            timeout = min(timeout, request.asked.timeout_us) if timeout else request.asked.timeout_us
        if timeout:
            self._timers[request] = self._later(timeout / 1e6, self._expire, request)

    def _expire(self, request: InFlightRequest) -> None:
        level = self._level_of[request] if self._several else self._levels[0]
        del self._timers[request]
        if level.policy.timeout_action == ModelQueuePolicy.DELAY:
            level.fresh.remove(request)
            level.delayed.append(request)
            self.changes += 1
            self._timed_out(None)
        else:
            self.remove(request)
            self._timed_out(request)

    def _level_for(self, request: InFlightRequest) -> _Level:
        """Return the level of a request's priority or, as in Triton, the default level if that priority does not exist."""
        priority = request.asked.priority
        return self._level(priority if 1 <= priority <= self._last else self._default)

    def _level(self, number: int) -> _Level:
        levels = self._levels
        place = bisect_left(levels, number, key=_number_of)
        if place == len(levels) or levels[place].number != number:
            levels.insert(place, _Level(number, self._policies.get(number, self._default_policy)))
        return levels[place]


def _removed(requests: deque[InFlightRequest], request: InFlightRequest) -> bool:
    if requests and requests[0] is request:
        requests.popleft()
        return True
    try:
        requests.remove(request)
    except ValueError:
        return False
    return True


_number_of = attrgetter("number")

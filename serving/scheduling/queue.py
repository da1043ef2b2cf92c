"""The queue of a model: priority levels, each with Triton's queue policy.

Source of the rules: ModelQueuePolicy and ModelDynamicBatching in model_config.proto, and Triton's policy queue: level 1
goes first; a request that waited longer than its timeout is rejected, or with DELAY served after all others of its level.
"""

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from operator import attrgetter

from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

from serving.core.errors import unavailable
from serving.core.in_flight import InFlightRequest

Later = Callable[..., asyncio.TimerHandle]  # (seconds, callback, *arguments)


class _Level:
    """One priority level. `delayed` holds timed-out requests under the DELAY action."""

    __slots__ = ("delayed", "fresh", "number", "policy")

    def __init__(self, number: int, policy: ModelQueuePolicy) -> None:
        self.number = number
        self.policy = policy
        self.fresh: OrderedDict[InFlightRequest, None] = OrderedDict()
        self.delayed: OrderedDict[InFlightRequest, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)


class RequestQueue:
    """Requests in the order in which they should run. Iterating does not remove.

    There may be 2**64 levels: level 1, and each that has requests, is an object. `timed_out` gets a request that has waited
    too long and has left the queue, None where one has been put behind others.
    """

    def __init__(
        self, batching: ModelDynamicBatching, later: Later, timed_out: Callable[[InFlightRequest | None], None]
    ) -> None:
        self._later = later
        self._timed_out = timed_out
        self._levels: list[_Level] = []  # by their numbers
        self._level_of: dict[InFlightRequest, _Level] = {}
        self._timers: dict[InFlightRequest, asyncio.TimerHandle] = {}
        self.configure(batching)

    def __len__(self) -> int:
        return len(self._level_of)

    def __iter__(self) -> Iterator[InFlightRequest]:
        for level in self._levels:
            yield from level.fresh
            yield from level.delayed

    def configure(self, batching: ModelDynamicBatching) -> None:
        """Take new policies; requests of a level that is gone move to the last one, their timeouts stay."""
        waiting = [(level.number, request) for level in self._levels for request in (*level.fresh, *level.delayed)]
        self._policies = dict(batching.priority_queue_policy) if batching.priority_levels else {}
        self._default_policy = batching.default_queue_policy
        self._count = max(1, batching.priority_levels)
        self._default = max(1, batching.default_priority_level)
        self._levels = []
        self._level(1)
        for number, request in waiting:
            level = self._level(min(number, self._count))
            level.fresh[request] = None
            self._level_of[request] = level

    def append(self, request: InFlightRequest) -> None:
        """Queue a request; raise UNAVAILABLE when its level is full."""
        if self._count == 1:
            level = self._levels[0]
        else:  # like Triton it takes the default for a priority that does not exist
            priority = request.asked.priority
            level = self._level(priority if 1 <= priority <= self._count else self._default)
        policy = level.policy
        if policy.max_queue_size and len(level) >= policy.max_queue_size:
            raise unavailable(f"Exceeds maximum queue size of {policy.max_queue_size}")
        level.fresh[request] = None
        self._level_of[request] = level
        if policy.default_timeout_microseconds or request.asked.timeout_us:
            self._start_timer(request, policy)

    def remove(self, request: InFlightRequest) -> bool:
        """Take a request out, to run or because its client left; return False where it is not queued."""
        level = self._level_of.pop(request, None)
        if level is None:
            return False
        if request in level.fresh:
            del level.fresh[request]
        else:
            del level.delayed[request]
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
        level = self._level_of[request]
        del self._timers[request]
        if level.policy.timeout_action == ModelQueuePolicy.DELAY:
            del level.fresh[request]
            level.delayed[request] = None
            self._timed_out(None)
        else:
            self.remove(request)
            self._timed_out(request)

    def _level(self, number: int) -> _Level:
        levels = self._levels
        place = bisect_left(levels, number, key=_number_of)
        if place == len(levels) or levels[place].number != number:
            levels.insert(place, _Level(number, self._policies.get(number, self._default_policy)))
        return levels[place]


_number_of = attrgetter("number")

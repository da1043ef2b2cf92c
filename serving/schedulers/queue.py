"""The waiting line of a model: priority levels, each with Triton's queue policy.

Source of the rules: ModelQueuePolicy and ModelDynamicBatching in model_config.proto, and Triton's policy queue: level 1
goes first; a request that waited longer than its timeout is rejected, or with DELAY served after all others of its level.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy

from serving.errors import unavailable
from serving.request import InferenceRequest
from serving.schedulers.base import Reject


class _Level:
    """One priority level. `delayed` holds timed-out requests under the DELAY action."""

    __slots__ = ("delayed", "fresh", "policy")

    def __init__(self, policy: ModelQueuePolicy) -> None:
        self.policy = policy
        self.fresh: OrderedDict[InferenceRequest, None] = OrderedDict()
        self.delayed: OrderedDict[InferenceRequest, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self.fresh) + len(self.delayed)


class RequestQueue:
    """Requests in the order in which they should run. Iterating does not remove."""

    def __init__(self, batching: ModelDynamicBatching, loop: asyncio.AbstractEventLoop, reject: Reject) -> None:
        self._loop = loop
        self._reject = reject
        self._levels: list[_Level] = []
        self._level_of: dict[InferenceRequest, _Level] = {}
        self._timers: dict[InferenceRequest, asyncio.TimerHandle] = {}
        self.configure(batching)

    def __len__(self) -> int:
        return len(self._level_of)

    def __iter__(self) -> Iterator[InferenceRequest]:
        for level in self._levels:
            yield from level.fresh
            yield from level.delayed

    def configure(self, batching: ModelDynamicBatching) -> None:
        """Take new policies; requests of a level that is gone move to the last one, their timeouts stay."""
        waiting = [
            (index, request) for index, level in enumerate(self._levels) for request in (*level.fresh, *level.delayed)
        ]
        count = max(1, batching.priority_levels)
        self._levels = [
            _Level(batching.priority_queue_policy.get(index + 1, batching.default_queue_policy))
            for index in range(count)
        ]
        self._default = max(1, batching.default_priority_level)
        for index, request in waiting:
            level = self._levels[min(index, count - 1)]
            level.fresh[request] = None
            self._level_of[request] = level

    def append(self, request: InferenceRequest) -> None:
        """Join the line; UNAVAILABLE when the level is full."""
        levels = self._levels
        if len(levels) == 1:
            level = levels[0]
        else:  # like Triton it takes the default for a priority that does not exist
            priority = request.priority if 1 <= request.priority <= len(levels) else self._default
            level = levels[priority - 1]
        policy = level.policy
        if policy.max_queue_size and len(level) >= policy.max_queue_size:
            raise unavailable(f"exceeds maximum queue size of {policy.max_queue_size}")
        level.fresh[request] = None
        self._level_of[request] = level
        if policy.default_timeout_microseconds or request.timeout_us:
            self._start_timer(request, policy)

    def remove(self, request: InferenceRequest) -> bool:
        """Leave the line, whether to run or because the client left."""
        level = self._level_of.pop(request, None)
        if level is None:
            return False
        if request in level.fresh:
            del level.fresh[request]
        else:
            del level.delayed[request]
        if self._timers:
            timer = self._timers.pop(request, None)
            if timer is not None:
                timer.cancel()
        return True

    def _start_timer(self, request: InferenceRequest, policy: ModelQueuePolicy) -> None:
        timeout = policy.default_timeout_microseconds
        if policy.allow_timeout_override and request.timeout_us:
            timeout = min(timeout, request.timeout_us) if timeout else request.timeout_us
        if timeout:
            self._timers[request] = self._loop.call_later(timeout / 1e6, self._expire, request)

    def _expire(self, request: InferenceRequest) -> None:
        level = self._level_of[request]
        del self._timers[request]
        if level.policy.timeout_action == ModelQueuePolicy.DELAY:
            del level.fresh[request]
            level.delayed[request] = None
        else:
            self.remove(request)
            self._reject(request, unavailable("Request timeout expired"))

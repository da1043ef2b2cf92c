"""What all models of one server share."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from serving.memory import MemoryMeter
from serving.rate_limiter import RateLimiter
from serving.request import InferenceRequest
from serving.response_cache import ResponseCache


@dataclass(frozen=True, slots=True)
class Runtime:
    """`infer` queues a request with its model: ensembles' steps go there. `executor` takes slow work off the loop."""

    loop: asyncio.AbstractEventLoop
    executor: Executor
    infer: Callable[[InferenceRequest], None]
    strict_devices: bool = False
    cache: ResponseCache | None = None
    limiter: RateLimiter | None = None
    meter: MemoryMeter = field(default_factory=MemoryMeter)

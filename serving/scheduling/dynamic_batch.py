"""The dynamic batcher: joins waiting requests into batches for the model's idle instances.

Without `dynamic_batching` in the configuration, each request runs alone, as in Triton's default scheduler.
With `dynamic_batching`, BatchRules chooses the next batch whenever an instance is idle. Source: Triton,
docs/user_guide/batcher.md.
"""

import asyncio
import time
from collections.abc import Iterable
from itertools import islice

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from serving.core.batch import Batch
from serving.core.errors import unavailable
from serving.core.in_flight import InFlightRequest
from serving.execution.instance import Instance
from serving.resources.rate_limiter import RateLimiter
from serving.scheduling.base import Reject
from serving.scheduling.batch_rules import BatchRules, FormingBatch
from serving.scheduling.instance_scheduler import InstanceScheduler, OnBatchDone
from serving.scheduling.queue import RequestQueue


class DynamicBatchScheduler(InstanceScheduler):
    """Batches the requests of one queue for any number of instances."""

    def __init__(
        self,
        config: ModelConfig,
        loop: asyncio.AbstractEventLoop,
        limiter: RateLimiter | None,
        reject: Reject,
        on_done: OnBatchDone,
    ) -> None:
        super().__init__(loop, limiter, reject, on_done)
        self._forming: FormingBatch | None = None
        self._formed_at = 0  # the queue's `changes` when `_forming` was made
        self._queue = RequestQueue(ModelDynamicBatching(), self._later, self._timed_out)
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        batching = config.dynamic_batching
        self._merge = config.HasField("dynamic_batching") and config.max_batch_size > 0
        preferred = tuple(sorted(size for size in batching.preferred_batch_size if size <= config.max_batch_size))
        self._rules = BatchRules(config.max_batch_size, preferred, batching.max_queue_delay_microseconds * 1000)
        self._preserve_ordering = batching.preserve_ordering
        policy = batching.default_queue_policy
        # With priorities, a maximum queue size or a timeout, requests wait only in the queue, which enforces these rules.
        self._works_ahead = not (
            batching.priority_levels or policy.max_queue_size or policy.default_timeout_microseconds
        )
        self._queue.configure(batching)
        self._wake()

    @property
    def pending(self) -> int:
        return self._queue.count + self._ahead

    def submit(self, request: InFlightRequest) -> None:
        self._queue.append(request)
        if not self._dispatch_scheduled and self._open:
            self._wake()

    def remove(self, request: InFlightRequest) -> bool:
        self._wake()  # requests behind the removed one may run now
        return self._queue.remove(request)

    def _choose(self, instance: Instance) -> list[InFlightRequest]:
        if not self._merge:
            first = self._queue.first()
            return [] if first is None else [first]
        if instance.bound and self._queue.count < self._rules.max_rows:
            return []  # more requests for a larger batch may come before the instance is free
        requests, _, wait_ns = self._form().choose(time.monotonic_ns() if self._rules.delay_ns else 0)
        if wait_ns:
            self._wake_in(wait_ns)
        return requests

    def _form(self) -> FormingBatch:
        """Return the batch that the waiting requests would form."""
        queue, forming = self._queue, self._forming
        if forming is None or self._formed_at != queue.changes:
            forming = self._forming = FormingBatch(self._rules)
            self._formed_at = queue.changes
            forming.add(queue)
        elif len(forming.requests) < queue.count:
            forming.add(islice(queue, len(forming.requests), None))
        return forming

    def _take(self, instance: Instance, chosen: list[InFlightRequest]) -> Batch:
        self._forming = None
        self._queue.take(chosen)
        rows = 0
        for request in chosen:
            rows += request.batch_size
        return Batch(chosen, rows, send=instance.send)

    def waiting(self) -> list[InFlightRequest]:
        return list(self._queue)

    def _drop(self, request: InFlightRequest) -> Iterable[InFlightRequest]:
        self._queue.remove(request)
        return (request,)

    def _timed_out(self, request: InFlightRequest | None) -> None:
        """Refuse a request that has waited too long, unless it was only delayed (None). Dispatch the requests behind it."""
        if request is not None:
            self._reject(request, unavailable("Request timeout expired"))
        self._wake()

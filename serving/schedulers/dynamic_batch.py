"""The dynamic batcher: joins waiting requests into batches for the model's idle instances.

Without `dynamic_batching` in the configuration every request is a batch of its own, as in Triton's default scheduler.
With it, whenever an instance is idle: a batch that reaches the largest size goes at once, a preferred size goes at once,
anything else goes when its oldest request has waited `max_queue_delay_microseconds` (0: immediately).
Source: Triton, docs/user_guide/model_configuration.md (Dynamic Batcher).
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from serving.batch import Batch
from serving.instance import Instance
from serving.request import InferenceRequest
from serving.schedulers.base import Reject, Scheduler
from serving.schedulers.queue import RequestQueue

OnBatchDone = Callable[[Batch], None]


class DynamicBatchScheduler(Scheduler):
    """One queue, any number of instances. `on_done` receives each executed batch, in order where that is asked for."""

    def __init__(
        self, config: ModelConfig, loop: asyncio.AbstractEventLoop, reject: Reject, on_done: OnBatchDone
    ) -> None:
        self._loop = loop
        self._on_done = on_done
        self._queue = RequestQueue(ModelDynamicBatching(), loop, reject)
        self._idle: deque[Instance] = deque()
        self._running: dict[Instance, Batch] = {}
        self._leaving: dict[Instance, asyncio.Future[None]] = {}
        self._ordered: deque[Batch] = deque()  # dispatched, not yet delivered; used with preserve_ordering
        self._finished: set[Batch] = set()
        self._dispatch_scheduled = False
        self._delay_timer: asyncio.TimerHandle | None = None
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        batching = config.dynamic_batching
        self._merge = config.HasField("dynamic_batching") and config.max_batch_size > 0
        self._max_rows = config.max_batch_size if self._merge else 1
        self._preferred = sorted(size for size in batching.preferred_batch_size if size <= self._max_rows)
        self._delay_ns: int = batching.max_queue_delay_microseconds * 1000
        self._preserve_ordering = batching.preserve_ordering
        self._queue.configure(batching)
        self._wake()

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, request: InferenceRequest) -> None:
        self._queue.append(request)
        if self._idle and not self._dispatch_scheduled:
            self._wake()

    def remove(self, request: InferenceRequest) -> bool:
        return self._queue.remove(request)

    # -- instances -------------------------------------------------------------------------------------------------
    def add_instance(self, instance: Instance) -> None:
        """Give the scheduler a started instance."""
        instance.on_done = self._instance_done
        self._idle.append(instance)
        self._wake()

    async def remove_instance(self, instance: Instance) -> None:
        """Take an instance away; returns when the batch that it runs is done."""
        if instance in self._idle:
            self._idle.remove(instance)
            return
        self._leaving[instance] = self._loop.create_future()
        await self._leaving[instance]

    # -- dispatch --------------------------------------------------------------------------------------------------
    def _wake(self) -> None:
        # After the other callbacks of this turn of the loop, so that requests that arrived together run together.
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        while self._idle and len(self._queue):
            batch = self._next_batch()
            if batch is None:
                return
            instance = self._idle.popleft()
            self._running[instance] = batch
            if self._preserve_ordering or self._ordered:
                self._ordered.append(batch)
            instance.execute(batch)

    def _next_batch(self) -> Batch | None:
        """The batch to run now, taken from the queue; None when it pays to wait for more requests."""
        queue = self._queue
        if not self._merge:
            request = next(iter(queue))
            queue.remove(request)
            return Batch([request], request.batch_size)
        chosen: list[InferenceRequest] = []
        rows = preferred_count = preferred_rows = 0
        full = False
        for request in queue:
            if chosen and (rows + request.batch_size > self._max_rows or request.batch_key != chosen[0].batch_key):
                full = True
                break
            chosen.append(request)
            rows += request.batch_size
            if rows in self._preferred:
                preferred_count, preferred_rows = len(chosen), rows
        full = full or rows >= self._max_rows
        if preferred_count and not self._waited_enough(chosen):
            chosen, rows = chosen[:preferred_count], preferred_rows
        elif not full and self._delay_ns and not self._waited_enough(chosen):
            self._wait_for_more(chosen)
            return None
        for request in chosen:
            queue.remove(request)
        return Batch(chosen, rows)

    def _waited_enough(self, chosen: list[InferenceRequest]) -> bool:
        if not self._delay_ns:
            return not self._preferred
        return time.monotonic_ns() - min(request.queued_ns for request in chosen) >= self._delay_ns

    def _wait_for_more(self, chosen: list[InferenceRequest]) -> None:
        if self._delay_timer is not None:
            self._delay_timer.cancel()
        oldest = min(request.queued_ns for request in chosen)
        remaining = (oldest + self._delay_ns - time.monotonic_ns()) / 1e9
        self._delay_timer = self._loop.call_later(max(0.0, remaining), self._delay_over)

    def _delay_over(self) -> None:
        self._delay_timer = None
        self._dispatch()

    def _instance_done(self, instance: Instance, batch: Batch) -> None:
        del self._running[instance]
        leaving = self._leaving.pop(instance, None)
        if leaving is not None:
            leaving.set_result(None)
        else:
            self._idle.append(instance)
            self._dispatch()  # before the answers are written: the instance should not wait for that
        self._deliver(batch)

    def _deliver(self, batch: Batch) -> None:
        if not self._ordered:
            self._on_done(batch)
            return
        self._finished.add(batch)
        while self._ordered and self._ordered[0] in self._finished:
            first = self._ordered.popleft()
            self._finished.discard(first)
            self._on_done(first)

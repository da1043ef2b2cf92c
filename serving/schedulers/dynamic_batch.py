"""The dynamic batcher: joins waiting requests into batches for the model's idle instances.

Without `dynamic_batching` in the configuration every request is a batch of its own, as in Triton's default scheduler.
With it, whenever an instance is idle, BatchRules says what goes. Source: Triton, docs/user_guide/batcher.md.
"""

import asyncio
import time

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching

from serving.batch import Batch
from serving.instance import Instance
from serving.request import InferenceRequest
from serving.schedulers.base import Reject
from serving.schedulers.batch_rules import BatchRules
from serving.schedulers.instance_scheduler import InstanceScheduler, OnBatchDone
from serving.schedulers.queue import RequestQueue


class DynamicBatchScheduler(InstanceScheduler):
    """One queue, any number of instances."""

    def __init__(
        self, config: ModelConfig, loop: asyncio.AbstractEventLoop, reject: Reject, on_done: OnBatchDone
    ) -> None:
        super().__init__(loop, on_done)
        self._queue = RequestQueue(ModelDynamicBatching(), loop, reject)
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        batching = config.dynamic_batching
        self._merge = config.HasField("dynamic_batching") and config.max_batch_size > 0
        preferred = tuple(sorted(size for size in batching.preferred_batch_size if size <= config.max_batch_size))
        self._rules = BatchRules(config.max_batch_size, preferred, batching.max_queue_delay_microseconds * 1000)
        self._preserve_ordering = batching.preserve_ordering
        self._queue.configure(batching)
        self._wake()

    @property
    def pending(self) -> int:
        return len(self._queue)

    def submit(self, request: InferenceRequest) -> None:
        self._queue.append(request)
        if not self._idle or self._dispatch_scheduled:
            return
        if self._merge:
            self._wake()
        else:  # nothing to wait for: what else came with it runs by itself
            self._dispatch()

    def remove(self, request: InferenceRequest) -> bool:
        return self._queue.remove(request)

    def _next_batch(self, instance: Instance) -> Batch | None:
        queue = self._queue
        if not self._merge:
            request = next(iter(queue))
            queue.remove(request)
            return Batch([request], request.batch_size)
        requests, rows, wait_ns = self._rules.choose(queue, time.monotonic_ns())
        if wait_ns:
            self._wake_in(wait_ns)
            return None
        for request in requests:
            queue.remove(request)
        return Batch(requests, rows)

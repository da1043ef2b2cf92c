"""What schedulers with instances share: who is idle, handing out batches, taking instances away, ordered delivery."""

import asyncio
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

from serving.batch import Batch
from serving.instance import Instance
from serving.rate_limiter import RateLimiter
from serving.schedulers.base import Scheduler

OnBatchDone = Callable[[Batch], None]


class InstanceScheduler(Scheduler):
    """Subclasses say which batch an idle instance should run; `on_done` receives each executed batch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_done: OnBatchDone) -> None:
        self._loop = loop
        self._on_done = on_done
        self.limiter: RateLimiter | None = None
        self._preserve_ordering = False
        self._instances: set[Instance] = set()
        self._idle: deque[Instance] = deque()
        self._leaving: dict[Instance, asyncio.Future[None]] = {}
        self._ordered: deque[Batch] = deque()  # dispatched, not yet delivered; used with preserve_ordering
        self._finished: set[Batch] = set()
        self._dispatch_scheduled = False
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # of the loop's clock

    @abstractmethod
    def _next_batch(self, instance: Instance) -> Batch | None:
        """The batch that this idle instance should run now, taken from the queue; None when there is none."""

    def add_instance(self, instance: Instance) -> None:
        """Give the scheduler a started instance."""
        instance.on_done = self._instance_done
        self._instances.add(instance)
        self._idle.append(instance)
        self._wake()

    async def remove_instance(self, instance: Instance) -> None:
        """Take an instance away; returns when the batch that it runs is done."""
        self._instances.discard(instance)
        if instance in self._idle:
            self._idle.remove(instance)
            return
        self._leaving[instance] = self._loop.create_future()
        await self._leaving[instance]

    def _wake(self) -> None:
        # After the other callbacks of this turn of the loop, so that requests that arrived together run together.
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _wake_in(self, nanoseconds: int) -> None:
        """Look again after the queue delay, at the latest."""
        seconds = nanoseconds / 1e9
        when = self._loop.time() + seconds
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        # Kept by ourselves: for a delay below a millisecond uvloop gives a handle that does not know its time.
        self._timer_at = when
        self._timer = self._loop.call_later(seconds, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._dispatch()

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        for _ in range(len(self._idle)):
            if not self.pending:
                return
            instance = self._idle.popleft()
            if not self._may_take(instance):
                self._idle.append(instance)
                continue
            if self.limiter is not None and not self.limiter.acquire(instance, self._wake):
                self._idle.append(instance)
                continue
            batch = self._next_batch(instance)
            if batch is None:
                self._idle.append(instance)
                if self.limiter is not None:
                    self.limiter.release(instance)
                continue
            if self._preserve_ordering or self._ordered:
                self._ordered.append(batch)
            instance.execute(batch)

    def _may_take(self, instance: Instance) -> bool:
        """One that cannot answer now leaves the requests to others, if there is another that can."""
        return instance.available() or not any(one.available() for one in self._instances)

    def _instance_done(self, instance: Instance, batch: Batch) -> None:
        self._executed(instance, batch)
        if self.limiter is not None:
            self.limiter.release(instance)
        leaving = self._leaving.pop(instance, None)
        if leaving is not None:
            leaving.set_result(None)
        else:
            self._idle.append(instance)
            self._dispatch()  # before the answers are written: the instance should not wait for that
        self._deliver(batch)

    def _executed(self, instance: Instance, batch: Batch) -> None:
        """For subclasses: look at the answers before the next batch of this instance is formed."""

    def _deliver(self, batch: Batch) -> None:
        if not self._ordered:
            self._on_done(batch)
            return
        self._finished.add(batch)
        while self._ordered and self._ordered[0] in self._finished:
            first = self._ordered.popleft()
            self._finished.discard(first)
            self._on_done(first)

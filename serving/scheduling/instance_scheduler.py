"""The common part of schedulers with instances: idle instances, dispatch, removal of instances, ordered delivery.

A batch begins in `_run_on` and ends in `batch_done`. If an exception occurs between them, the requests are answered and the
instance becomes free again. An instance may execute a batch inside `_run_on`, before `execute` returns. Therefore `submit`
never dispatches: no frontend gets an answer before its `submit` returns. A scheduler starts timers with `_later`, which also
handles exceptions.
"""

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable

from serving.core.batch import Batch
from serving.core.errors import safely, unexpected
from serving.core.in_flight import InFlightRequest
from serving.execution.instance import Instance
from serving.resources.precise_timers import PreciseTimer, precise_timers
from serving.resources.rate_limiter import RateLimiter
from serving.scheduling.base import Reject, Scheduler

OnBatchDone = Callable[[Batch], None]

TURN_NS = 1_000_000  # how long executions on the loop's thread may take before other callbacks of the loop run


class InstanceScheduler(Scheduler):
    """Subclasses choose the batch that an idle instance should run. `on_done` receives executed batches without raising."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limiter: RateLimiter | None, reject: Reject, on_done: OnBatchDone
    ) -> None:
        self._loop = loop
        self._limiter = limiter
        self._reject = reject
        self._on_done = on_done
        self._preserve_ordering = False
        self._works_ahead = True  # a busy instance may get further batches, which wait in it
        self._ahead = 0  # the number of requests in such waiting batches
        self._instances: set[Instance] = set()
        self._open: deque[Instance] = deque()  # the instances that may get a batch, idle ones first
        self._leaving: dict[Instance, asyncio.Future[None]] = {}
        self._ordered: deque[Batch] = deque()  # dispatched and not yet delivered batches, with preserve_ordering
        self._finished: set[Batch] = set()
        self._dispatch_scheduled = False
        self._dispatching = False
        self._turn_ns = 0  # the time of executions on the loop's thread since the dispatch began
        self._timers = precise_timers(loop)
        self._timer: PreciseTimer | None = None

    @abstractmethod
    def _choose(self, instance: Instance) -> list[InFlightRequest]:
        """Return the requests that this instance should run next, still queued; none if the instance should wait for more."""

    @abstractmethod
    def _take(self, instance: Instance, chosen: list[InFlightRequest]) -> Batch:
        """Remove these requests from the queue, and return their batch."""

    @abstractmethod
    def _drop(self, request: InFlightRequest) -> Iterable[InFlightRequest]:
        """Remove a request that waits or was just taken. Return the request, and the requests that cannot run without it."""

    def add_instance(self, instance: Instance) -> None:
        """Give the scheduler a started instance."""
        self._instances.add(instance)
        self._open.append(instance)
        self._wake()

    def vacate(self, instance: Instance) -> "asyncio.Future[None] | None":
        """Bind no new sequence to an instance that will be removed. Return a future that is done when no sequence is bound
        to the instance, or None if none is bound now."""
        return None

    async def remove_instance(self, instance: Instance) -> None:
        """Remove an instance, and wait until its batches are done."""
        self._instances.discard(instance)
        if instance in self._open:
            self._open.remove(instance)
        if not instance.bound:
            return
        self._leaving[instance] = self._loop.create_future()
        await self._leaving[instance]

    def _wake(self) -> None:
        # Dispatch after the other callbacks of this turn of the loop, so that requests that arrived together run together.
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            self._loop.call_soon(self._dispatch)

    def _wake_in(self, nanoseconds: int) -> None:
        """Dispatch after at most this time."""
        timer = self._timer
        if timer is not None:
            if timer.due_ns <= time.monotonic_ns() + nanoseconds:
                return
            timer.cancel()
        self._timer = self._timers.call_in(nanoseconds, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._dispatch()

    def _later(self, seconds: float, callback: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
        """Call back on the loop. If the callback raises, all waiting requests fail, because their state is unknown."""
        return self._loop.call_later(seconds, self._guarded, callback, *arguments)

    def _guarded(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:
            self._fail(self.waiting(), error)

    def _capacity(self, instance: Instance) -> int:
        """Return how many batches an instance may have: one with a rate limiter, because that batch has its resources."""
        return instance.slots if self._works_ahead and self._limiter is None else 1

    def _dispatch(self) -> None:
        """Give batches to the free instances until none takes another one, or other callbacks of the loop must run."""
        self._dispatch_scheduled = False
        self._dispatching = True
        self._turn_ns = 0
        open_ = self._open
        offered = 0  # the number of instances in a row that took no batch
        while offered < len(open_) and self.pending:
            if self._turn_ns > TURN_NS:
                self._wake()
                break
            if self._run_on(open_[0]):
                offered = 0
            else:
                offered += 1
                open_.rotate(-1)
        self._dispatching = False

    def _run_on(self, instance: Instance) -> bool:
        """Give a free instance its next batch. Return whether the instance took a batch."""
        chosen: list[InFlightRequest] = []
        batch: Batch | None = None
        limiter = self._limiter
        acquired = False
        try:
            if len(self._instances) > 1 and not self._may_take(instance):
                return False
            chosen = self._choose(instance)
            if not chosen or (limiter is not None and not limiter.acquire(instance, self._dispatch)):
                return False
            acquired = limiter is not None
            batch = self._take(instance, chosen)
            self._bind(instance, batch)
            instance.execute(batch)
            return True
        except Exception as error:
            if batch is not None:
                self._unbind(instance, batch)
            self._fail(chosen or self.waiting(), error)
        if acquired and limiter is not None:
            safely("releasing resources", limiter.release, instance)
        return False

    def _bind(self, instance: Instance, batch: Batch) -> None:
        if instance.bound:
            instance.ahead.append(len(batch.requests))
            self._ahead += len(batch.requests)
        instance.bound += 1
        self._open.remove(instance)
        if instance.slots > 1 and instance.bound < self._capacity(instance):
            self._open.append(instance)  # an instance with batches stays behind the others
        if self._preserve_ordering or self._ordered:
            self._ordered.append(batch)

    def _unbind(self, instance: Instance, batch: Batch) -> None:
        """Undo `_bind`, because the instance did not get the batch."""
        instance.bound -= 1
        if instance.ahead:
            self._ahead -= instance.ahead.pop()
        if instance not in self._open:
            self._open.append(instance)
        if batch in self._ordered:
            self._ordered.remove(batch)

    def _fail(self, requests: Iterable[InFlightRequest], error: Exception) -> None:
        """Answer requests that cannot run, because the scheduler has raised an exception."""
        failure = unexpected(error, "scheduling a request")
        for request in requests:
            for dropped in safely("dropping a request", self._drop, request) or (request,):
                self._reject(dropped, failure)

    def _may_take(self, instance: Instance) -> bool:
        """Return whether an instance may run a batch. An unavailable instance may not if another instance is available."""
        return instance.available() or not any(one.available() for one in self._instances)

    def batch_done(self, instance: Instance, batch: Batch) -> None:
        """Take a batch that an instance has executed. Called on the loop's thread."""
        if self._limiter is not None:
            safely("releasing resources", self._limiter.release, instance)
        instance.bound -= 1
        if instance.ahead:
            self._ahead -= instance.ahead.popleft()
        open_ = self._open
        if self._leaving and instance in self._leaving:
            if not instance.bound:
                self._leaving.pop(instance).set_result(None)
        elif instance not in open_:
            if instance.bound < self._capacity(instance):
                open_.append(instance)
        elif instance.bound >= self._capacity(instance):  # it has fewer slots than before, because it became slower
            open_.remove(instance)
        elif not instance.bound and len(open_) > 1:  # move it before the busy ones
            open_.remove(instance)
            open_.appendleft(instance)
        if self._dispatching:
            self._turn_ns += batch.ended_ns - batch.started_ns
        else:
            self._dispatch()  # before the answers are written, so that the instance need not wait for them
        if self._ordered:
            self._deliver_in_order(batch)
        else:
            self._on_done(batch)

    def _deliver_in_order(self, batch: Batch) -> None:
        self._finished.add(batch)
        while self._ordered and self._ordered[0] in self._finished:
            first = self._ordered.popleft()
            self._finished.discard(first)
            self._on_done(first)

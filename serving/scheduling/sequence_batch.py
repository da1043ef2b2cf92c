"""The sequence batcher: requests of one sequence run in order on one instance, in one batch slot.

Direct: a sequence keeps its slot, and row i of a batch is slot i; slots without a request have a row with READY false.
Oldest: an instance has up to `max_candidate_sequences` sequences, and batches the oldest request of each sequence.
A sequence begins with START, and ends with END or after `max_sequence_idle_microseconds`. A sequence waits in the backlog while
no slot is free. An iterative sequence is a single request that the scheduler executes again each time the model reschedules it,
until the model is done.
Source: Triton, docs/user_guide/architecture.md (Stateful Models).
"""

import asyncio
import time
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.batch import Batch
from serving.core.datatypes import Tensor
from serving.core.errors import invalid, unavailable, unexpected
from serving.core.in_flight import InFlightRequest
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response import Answer, InferenceResponse
from serving.execution.instance import Instance
from serving.resources.rate_limiter import RateLimiter
from serving.scheduling.base import Reject
from serving.scheduling.batch_rules import BatchRules
from serving.scheduling.instance_scheduler import InstanceScheduler, OnBatchDone
from serving.scheduling.sequence_controls import SequenceControls

DEFAULT_IDLE_S = 1.0


class _Sequence:
    """One sequence, from START until END has run or the sequence was idle too long."""

    __slots__ = ("begun_ns", "id", "last", "requests", "running", "slot", "state", "timer")

    def __init__(self, id_: int | str) -> None:
        self.id = id_
        self.begun_ns = 0  # when the last request with START came (monotonic ns)
        self.requests: deque[InFlightRequest] = deque()
        self.slot: _Slot | None = None
        self.running = False
        self.state: dict[str, Tensor] = {}
        self.last = 0.0
        self.timer: asyncio.TimerHandle | None = None


class _KeyByState(NamedTuple):
    own: Hashable  # the request's batch key
    states: tuple[tuple[int, ...], ...]


class _Slot:
    __slots__ = ("index", "instance", "sequence")

    def __init__(self, instance: Instance, index: int) -> None:
        self.instance = instance
        self.index = index
        self.sequence: _Sequence | None = None


class SequenceBatchScheduler(InstanceScheduler):
    """Binds each sequence to a slot of an instance."""

    def __init__(
        self,
        config: ModelConfig,
        model_dir: Path,
        loop: asyncio.AbstractEventLoop,
        limiter: RateLimiter | None,
        reject: Reject,
        on_done: OnBatchDone,
    ) -> None:
        super().__init__(loop, limiter, reject, on_done)
        self._works_ahead = False  # a request needs the state after the previous request of its sequence
        self._controls = SequenceControls(config, model_dir)
        self._slots: dict[Instance, list[_Slot]] = {}  # slots are created on demand, because there may be 2**31
        self._vacating: dict[Instance, asyncio.Future[None]] = {}  # instances that take no new sequences
        self._sequences: dict[int | str, _Sequence] = {}  # the sequences that may take further requests
        self._of: dict[InFlightRequest, _Sequence] = {}  # the sequences of waiting and running requests
        self._backlog: deque[_Sequence] = deque()
        self._left: asyncio.Future[None] | None = None  # done when no sequence is open
        self._ids = count(1)  # ids for iterative sequences if clients give none
        self._pending = 0
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        batching = config.sequence_batching
        rows = max(1, config.max_batch_size)
        self._model = config.name
        self._oldest = batching.HasField("oldest")
        self._iterative = batching.iterative_sequence
        self._idle_s = batching.max_sequence_idle_microseconds / 1e6 or DEFAULT_IDLE_S
        if self._oldest:
            oldest = batching.oldest
            self._slot_count = oldest.max_candidate_sequences or rows
            preferred = tuple(sorted(size for size in oldest.preferred_batch_size if size <= rows))
            self._rules = BatchRules(rows, preferred, oldest.max_queue_delay_microseconds * 1000)
            self._preserve_ordering = oldest.preserve_ordering
        else:
            direct = batching.direct
            self._slot_count = rows
            self._rules = BatchRules(rows, (), direct.max_queue_delay_microseconds * 1000)
            self._wanted_slots = max(1, int(np.ceil(direct.minimum_slot_utilization * rows)))

    @property
    def pending(self) -> int:
        return self._pending

    def complete_warmup(self, batches: list[Batch]) -> None:
        """Add the controls of a sequence's first request and the initial state to warm-up requests that lack them."""
        for request in (request for batch in batches for request in batch.requests):
            given = request.inputs
            request.sequence = SequencePosition(self._controls.new_id(1), start=True)
            self._controls.prepare(request, {}, ready=True)
            request.inputs = {**request.inputs, **given}

    def add_instance(self, instance: Instance) -> None:
        self._slots[instance] = []
        super().add_instance(instance)
        self._place_backlog()

    def vacate(self, instance: Instance) -> "asyncio.Future[None] | None":
        if not self._slots[instance]:
            return None
        done = self._vacating[instance] = self._loop.create_future()
        return done

    async def remove_instance(self, instance: Instance) -> None:
        await super().remove_instance(instance)
        del self._slots[instance]
        self._vacating.pop(instance, None)

    # -- requests --------------------------------------------------------------------------------------------------
    def submit(self, request: InFlightRequest) -> None:
        if self._iterative:
            identifier = request.sequence.id or self._controls.new_id(next(self._ids))
            request.sequence = request.sequence._replace(id=identifier, start=True)
        if not request.sequence.id:
            raise invalid(
                f"inference request to model '{self._model}' must specify a non-zero or non-empty correlation ID"
            )
        if request.batch_size != 1:
            raise invalid(
                f"inference request to model '{self._model}' must specify batch-size 1 due to requirements of sequence batcher"
            )
        self._controls.check(request)
        sequence = self._sequences.get(request.sequence.id)
        if sequence is None:
            if not request.sequence.start:
                raise invalid(
                    f"inference request for sequence {request.sequence.id} to model '{self._model}' must specify the "
                    "START flag on the first request of the sequence"
                )
            sequence = self._sequences[request.sequence.id] = _Sequence(request.sequence.id)
        if request.sequence.start:
            sequence.begun_ns = request.queued_ns
        self._queue(sequence, request)
        if sequence.slot is None and len(sequence.requests) == 1:
            self._place(sequence)
        if request.sequence.end or self._iterative:
            self._close(sequence)  # the next START of this id begins another sequence
        self._wake()

    def remove(self, request: InFlightRequest) -> bool:
        """Remove a waiting request, cancel the other waiting requests of its sequence, and end the sequence."""
        sequence = self._of.get(request)
        if sequence is None or request not in sequence.requests:
            return False
        waiting = list(sequence.requests)
        self._forget_waiting(sequence)
        self._end(sequence)
        for other in waiting:
            if other is not request:
                other.cancel()
        self._wake()  # requests behind the removed ones may run now
        return True

    def _queue(self, sequence: _Sequence, request: InFlightRequest) -> None:
        sequence.requests.append(request)
        sequence.last = self._loop.time()
        self._of[request] = sequence
        self._pending += 1
        if sequence.timer is None:
            sequence.timer = self._later(self._idle_s, self._check_idle, sequence)

    def _forget_waiting(self, sequence: _Sequence) -> None:
        for request in sequence.requests:
            del self._of[request]
        self._pending -= len(sequence.requests)
        sequence.requests.clear()

    # -- open sequences --------------------------------------------------------------------------------------------
    def sequence_start_ns(self, identifier: int | str) -> int:
        sequence = self._sequences.get(identifier)
        return sequence.begun_ns if sequence is not None else 0

    def sequences_ended(self) -> "asyncio.Future[None] | None":
        if not self._sequences:
            return None
        self._left = self._loop.create_future()
        return self._left

    def _close(self, sequence: _Sequence) -> None:
        """Accept no further requests for a sequence."""
        if self._sequences.get(sequence.id) is sequence:
            del self._sequences[sequence.id]
        if self._left is not None and not self._sequences and not self._left.done():
            self._left.set_result(None)

    # -- slots -----------------------------------------------------------------------------------------------------
    def _place(self, sequence: _Sequence) -> None:
        """Put a new sequence into the lowest free slot of all instances, or into the backlog if no slot is free."""
        if self._take_slot(sequence):
            return
        self._backlog.append(sequence)
        timeout_us = sequence.requests[0].asked.timeout_us
        if timeout_us:
            self._later(timeout_us / 1e6, self._backlog_timeout, sequence)

    def _take_slot(self, sequence: _Sequence) -> bool:
        free = [slot for instance, slots in self._slots.items() if (slot := self._free_slot(instance, slots))]
        free = [slot for slot in free if slot.instance not in self._vacating]
        if not free:
            return False
        slot = min(free, key=lambda slot: slot.index)
        slots = self._slots[slot.instance]
        if slot.index == len(slots):
            slots.append(slot)
        slot.sequence, sequence.slot = sequence, slot
        return True

    def _free_slot(self, instance: Instance, slots: list[_Slot]) -> _Slot | None:
        """Return the lowest free slot of an instance, which may be a new one, or None if all slots are taken."""
        found = next((slot for slot in slots if slot.sequence is None), None)
        if found is None and len(slots) < self._slot_count:
            found = _Slot(instance, len(slots))
        return found

    def _free(self, slot: _Slot) -> None:
        slot.sequence = None
        slots = self._slots.get(slot.instance, [])
        while slots and slots[-1].sequence is None:
            slots.pop()
        vacated = self._vacating.get(slot.instance)
        if vacated is not None and not slots and not vacated.done():
            vacated.set_result(None)

    def _place_backlog(self) -> None:
        while self._backlog and self._take_slot(self._backlog[0]):
            self._backlog.popleft()
            self._wake()

    def _backlog_timeout(self, sequence: _Sequence) -> None:
        if sequence.slot is None and sequence in self._backlog:
            waiting = list(sequence.requests)
            self._forget_waiting(sequence)
            self._end(sequence)
            for request in waiting:
                self._reject(request, unavailable("timeout of the corresponding sequence has been expired"))

    def _check_idle(self, sequence: _Sequence) -> None:
        sequence.timer = None
        quiet = self._loop.time() - sequence.last
        if sequence.requests or sequence.running or quiet < self._idle_s:
            again = self._idle_s if sequence.requests or sequence.running else self._idle_s - quiet
            sequence.timer = self._later(again, self._check_idle, sequence)
        else:
            self._end(sequence)

    def _end(self, sequence: _Sequence) -> None:
        """Forget a sequence and give its slot to the next sequence in the backlog."""
        self._close(sequence)
        if sequence.timer is not None:
            sequence.timer.cancel()
        if sequence in self._backlog:
            self._backlog.remove(sequence)
        if sequence.slot is not None and not sequence.running:
            slot, sequence.slot = sequence.slot, None
            self._free(slot)
            self._place_backlog()

    # -- batches ---------------------------------------------------------------------------------------------------
    def _may_take(self, instance: Instance) -> bool:
        return True  # no other instance has the sequences of this one

    def _choose(self, instance: Instance) -> list[InFlightRequest]:
        ready = [slot.sequence for slot in self._slots[instance] if slot.sequence and slot.sequence.requests]
        if not ready:
            return []
        if self._controls.states_vary:
            for sequence in ready:
                self._key_by_state(sequence)
        first = sorted((sequence.requests[0] for sequence in ready), key=lambda request: request.queued_ns)
        if self._oldest:
            chosen, _, wait_ns = self._rules.choose(first, time.monotonic_ns())
        else:
            wait_ns = first[0].queued_ns + self._rules.delay_ns - time.monotonic_ns()
            if len(first) >= self._wanted_slots:
                wait_ns = 0
            chosen = [request for request in first if request.batch_key == first[0].batch_key]
        if wait_ns > 0:
            self._wake_in(wait_ns)
            return []
        return chosen

    def _take(self, instance: Instance, chosen: list[InFlightRequest]) -> Batch:
        rows = chosen if self._oldest else list(self._rows(instance, chosen))
        for request in chosen:
            self._start(request)
        size = sum(request.batch_size for request in rows)
        return Batch(rows, size, len(rows) - len(chosen), instance.send)

    def waiting(self) -> list[InFlightRequest]:
        return [request for request, sequence in self._of.items() if request in sequence.requests]

    def _drop(self, request: InFlightRequest) -> Iterable[InFlightRequest]:
        """Drop a request, and the waiting requests of its sequence, which cannot run without it."""
        sequence = self._of.pop(request, None)
        if sequence is None:
            return (request,)
        if request in sequence.requests:
            sequence.requests.remove(request)
            self._pending -= 1
        else:
            sequence.running = False
        others = list(sequence.requests)
        self._forget_waiting(sequence)
        self._end(sequence)
        return [request, *others]

    def _key_by_state(self, sequence: _Sequence) -> None:
        """Add the state's shapes to a request's batch key, because states of different shapes cannot share a batch."""
        request = sequence.requests[0]
        own = request.batch_key.own if isinstance(request.batch_key, _KeyByState) else request.batch_key
        request.batch_key = _KeyByState(own, self._controls.state_shapes(_state_of(request, sequence)))

    def _rows(self, instance: Instance, chosen: list[InFlightRequest]) -> Iterator[InFlightRequest]:
        """Yield one request for each slot up to the last chosen one: the slot's chosen request, or a stand-in."""
        left = set(chosen)
        for slot in self._slots[instance]:
            request = slot.sequence.requests[0] if slot.sequence and slot.sequence.requests else None
            if request in left:
                left.discard(request)
                yield request
            else:
                yield self._stand_in(chosen[0])
            if not left:
                return

    def _stand_in(self, pattern: InFlightRequest) -> InFlightRequest:
        """Return a request with inputs of zeros, in the shapes of `pattern`, and READY false. Its answer is dropped."""
        inputs = {name: _zeros_like(array) for name, array in pattern.inputs.items()}
        stand_in = InFlightRequest.unanswered(InferenceRequest(pattern.asked.model_name, inputs))
        stand_in.respond(None)  # mark it as finished, so that its answer is dropped
        state = _state_of(pattern, self._of[pattern]) if self._controls.states_vary else {}
        self._controls.prepare(stand_in, {name: _zeros_like(array) for name, array in state.items()}, ready=False)
        return stand_in

    def _start(self, request: InFlightRequest) -> None:
        sequence = self._of[request]
        sequence.requests.popleft()
        sequence.running = True
        self._pending -= 1
        if request.sequence.start:
            sequence.state = {}
        self._controls.prepare(request, sequence.state, ready=True)

    def batch_done(self, instance: Instance, batch: Batch) -> None:
        self._keep_states(batch)  # the next batch of this instance needs the states
        super().batch_done(instance, batch)

    def _keep_states(self, batch: Batch) -> None:
        for index, request in enumerate(batch.requests):
            if request not in self._of:  # a stand-in
                continue
            try:
                self._step_done(request, batch.responses[index], again=request in batch.rescheduled)
            except Exception as error:  # the state for the next request of the sequence is unknown
                failure = unexpected(error, "keeping the state of a sequence")
                batch.rescheduled = batch.rescheduled - {request}
                batch.responses[index] = failure
                self._fail([other for other in self._drop(request) if other is not request], failure)

    def _step_done(self, request: InFlightRequest, answer: Answer, again: bool) -> None:
        sequence = self._of[request]
        sequence.last = self._loop.time()
        if isinstance(answer, InferenceResponse):
            self._controls.keep_state(answer.outputs, request.asked.requested_outputs, sequence.state)
        sequence.running = False
        del self._of[request]
        if again and not request.finished:
            self._again(sequence, request)
            return
        ended = request.sequence.end or self._sequences.get(sequence.id) is not sequence
        if ended and not sequence.requests:
            self._end(sequence)

    def _again(self, sequence: _Sequence, request: InFlightRequest) -> None:
        """Queue a rescheduled request again, before all other waiting requests of its sequence."""
        request.sequence = request.sequence._replace(start=False)
        request.requested_outputs = request.asked.requested_outputs
        request.queued_ns = time.monotonic_ns()
        sequence.requests.appendleft(request)
        self._of[request] = sequence
        self._pending += 1
        self._wake()


def _state_of(request: InFlightRequest, sequence: _Sequence) -> dict[str, Tensor]:
    return {} if request.sequence.start else sequence.state


def _zeros_like(array: Tensor) -> Tensor:
    return np.full(array.shape, b"", np.object_) if array.dtype == np.object_ else np.zeros(array.shape, array.dtype)

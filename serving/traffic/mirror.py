"""Mirrors: copies of requests that stable has answered. The candidate gets them, and its answers are compared with stable's.

wants() -> the client is answered -> take: inputs and answer are held -> the loop's next turn: candidate.submit -> compare
Before a client is answered, mirroring costs one random draw in `wants` and one object around the responder. All other work
comes after the answer. A mirror that could delay clients' requests is dropped, and counted under one of these reasons:
in_flight   as many mirrors are under way as the policy allows
memory      mirrors hold as many bytes as allowed, the server's memory for requests is scarce, or the candidate cannot be loaded
            unless other models are evicted
loop        the event loop is behind, or busy most of the time
queue       requests wait for stable, or for the candidate
refused     the candidate takes no requests now: its queue is full, it is being unloaded, or its server is unreachable or
            denies permission
too_large   the request and its answer are larger than all mirrors together may be
unfit       the request cannot be repeated: it has a sequence, a decoupled model, classes or shared memory as outputs, inputs in
            memory of a GPU or of a client, or values that the other server's JSON cannot carry
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.traffic import Shadow
from repository.core.comparison import Comparison, Tolerance, class_outputs, compare
from serving.core.client_headers import pass_on
from serving.core.datatypes import COPIED_BYTES, Tensor
from serving.core.errors import Code, NoAnswer, ServingError, safely, unexpected
from serving.core.in_flight import CallbackResponder, InFlightRequest, Responder
from serving.core.request import InferenceRequest
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.extensions.shared_memory import in_client_memory
from serving.resources.request_memory import RequestMemory
from serving.traffic.figures import ShadowFigures
from serving.traffic.mismatches import Mismatches
from serving.traffic.remotes.remote_model import NotAsDeclared
from serving.traffic.spare_time import SpareTime

TIMEOUT_S = 10.0  # the candidate's time limit for a mirror
MAX_BYTES = 64 << 20  # the bytes that all mirrors of a model may hold
MAX_ELEMENTS = 1 << 16  # a BYTES tensor with more elements is too large, because their sizes are added up one by one
LATE_NS = 20_000_000  # a mirror that waits longer for the loop's next turn is dropped
SHORT_QUEUE = 32  # mirrors are dropped if more requests than this, and more than four batches, wait
COMPARED_ON_LOOP = 64 << 10  # two answers that have fewer bytes together are compared on the event loop


class MirroredArm(NamedTuple):
    """The part of an arm that a mirror needs. pending: returns how many requests wait for the arm. outputs: the outputs that it
    can give, or None for all. needs_eviction: returns whether other models must be evicted to load its model."""

    submit: Callable[[InFlightRequest], None]
    pending: Callable[[], int]
    outputs: frozenset[str] | None = None
    needs_eviction: Callable[[], bool] = lambda: False


class Mirror:
    """The mirrors of one rollout. Used on the event loop's thread."""

    def __init__(
        self,
        shadow: Shadow,
        config: ModelConfig,
        stable: MirroredArm,
        candidate: MirroredArm,
        figures: ShadowFigures,
        memory: RequestMemory,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """config: the configuration of the model. memory: the memory budget that mirrors share with clients' requests."""
        self.figures = figures
        self.mismatches = Mismatches(shadow.keep, memory)
        self._stable = stable
        self._candidate = candidate
        self._memory = memory
        self._timeout_s = timeout_s
        self._under_way: set[_Mirrored] = set()
        self._bytes = 0
        self._closed = False
        self._spare = SpareTime()
        self._compares: ThreadPoolExecutor | None = None
        self.configure(shadow, config)

    def configure(self, shadow: Shadow, config: ModelConfig) -> None:
        """Replace the policy of the rollout."""
        self._share = shadow.share / 100
        self._max_in_flight = shadow.max_in_flight
        self._tolerance = Tolerance(shadow.absolute, shadow.relative)
        self._classes = class_outputs(config)
        self._lowest_priority = config.dynamic_batching.priority_levels
        self._short_queue = max(SHORT_QUEUE, 4 * config.max_batch_size)
        self._outputs = _common(self._stable.outputs, self._candidate.outputs)
        self.mismatches.configure(shadow.keep)
        if not self.mismatches.keeps:
            self.figures.trouble = None

    def close(self) -> None:
        """Cancel the mirrors under way, and forget the mismatches."""
        self._closed = True
        for mirrored in list(self._under_way):
            request = mirrored.request
            self._end(mirrored)
            if request is not None:
                request.cancel()
        self.mismatches.clear()
        if self._compares is not None:
            self._compares.shutdown(wait=False, cancel_futures=True)

    # -- before the client is answered -----------------------------------------------------------------------------
    def wants(self) -> bool:
        """Return whether to mirror the next request of stable: it is drawn at random, and there must be room for a mirror."""
        if random.random() >= self._share or self._closed:
            return False
        reason = self._no_room() or ("" if self._spare.left() else "loop")
        if reason:
            self.figures.dropped[reason] += 1
        return not reason

    def _no_room(self) -> str:
        if len(self._under_way) >= self._max_in_flight:
            return "in_flight"
        if self._bytes >= MAX_BYTES or self._memory.scarce or self._candidate.needs_eviction():
            return "memory"
        return "queue" if self._stable.pending() > self._short_queue else ""

    def offer(self, request: InFlightRequest, answer: Answer, took_ns: int) -> None:
        """Arrange to mirror a request after its client is answered. answer: the final answer, which stable is about to send."""
        if isinstance(answer, InferenceResponse) and not self._closed:
            request.responder = _AfterAnswer(self, request, took_ns)
        elif answer is None:  # the end of a decoupled model's stream
            self.figures.dropped["unfit"] += 1

    # -- after the client is answered ------------------------------------------------------------------------------
    def take(self, request: InFlightRequest, answer: InferenceResponse, took_ns: int) -> None:
        """Hold the tensors of an answered request, and submit a copy of it to the candidate in the next turn of the loop."""
        asked = request.asked
        if _unfit(request, answer):
            self.figures.dropped["unfit"] += 1
            return
        size = _size(asked.inputs, answer.outputs)
        reason = self._no_room() or ("too_large" if size > MAX_BYTES else "memory" if not self._count(size) else "")
        if reason:
            self.figures.dropped[reason] += 1
            return
        mirrored = _Mirrored(_hold(asked.inputs), _hold(answer.outputs), took_ns, size)
        again = self._copy_for_candidate(request, mirrored)
        self._under_way.add(mirrored)
        asyncio.get_running_loop().call_soon(self._ask, mirrored, again, time.monotonic_ns())

    def _copy_for_candidate(self, request: InFlightRequest, mirrored: "_Mirrored") -> InFlightRequest:
        """Return a copy of the request for the candidate. Requests that the copy causes use the arms of the original."""
        asked = request.asked
        same = InferenceRequest(
            asked.model_name,
            mirrored.inputs,
            id=asked.id,
            requested_outputs=self._requested(asked.requested_outputs),
            parameters=asked.parameters,
            priority=self._lowest_priority,
            from_ensemble=asked.from_ensemble,
        )
        again = InFlightRequest(same, CallbackResponder(partial(self._take_answer, mirrored)))
        again.made_for(request)
        again.mirror()
        pass_on((request,), again)
        return again

    def _count(self, size: int) -> bool:
        if self._bytes + size > MAX_BYTES:
            return False
        try:
            self._memory.take(size)
        except ServingError:
            return False
        self._bytes += size
        return True

    def _requested(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the requested outputs that both arms can give."""
        if self._outputs is None:
            return names
        return tuple(name for name in names or sorted(self._outputs) if name in self._outputs)

    def _ask(self, mirrored: "_Mirrored", again: InFlightRequest, taken_ns: int) -> None:
        """Submit a mirror to the candidate, unless the loop or the candidate is behind."""
        if self._closed:
            return
        mirrored.asked_ns = time.monotonic_ns()
        late = mirrored.asked_ns - taken_ns > LATE_NS
        if late or self._candidate.pending() > self._short_queue:
            self._drop(mirrored, "loop" if late else "queue")
            return
        mirrored.request = again
        mirrored.timer = asyncio.get_running_loop().call_later(self._timeout_s, again.cancel)
        try:
            self._candidate.submit(again)
        except Exception as error:
            self._failed(mirrored, unexpected(error, "asking the candidate"))

    def _take_answer(self, mirrored: "_Mirrored", answer: Answer, final: bool) -> None:
        """Compare the candidate's answer with the answer of stable."""
        if not final or mirrored not in self._under_way:
            return
        mirrored.request = None
        if not isinstance(answer, InferenceResponse | NotAsDeclared):
            self._failed(mirrored, answer)
            return
        took_ns = time.monotonic_ns() - mirrored.asked_ns
        more = _size({}, answer.outputs)
        if more > MAX_BYTES or not self._count(more):
            self._drop(mirrored, "memory")
            return
        mirrored.size += more
        stable = self._common_outputs(mirrored.outputs)
        candidate = self._common_outputs(answer.outputs)
        if 2 * more < COMPARED_ON_LOOP:
            self._count_comparison(
                mirrored, candidate, took_ns, compare(stable, candidate, self._tolerance, self._classes)
            )
            return
        if self._compares is None:
            self._compares = ThreadPoolExecutor(1, thread_name_prefix="compare")
        candidate = _hold(candidate)
        job = self._compares.submit(compare, stable, candidate, self._tolerance, self._classes)
        loop = asyncio.get_running_loop()
        job.add_done_callback(
            lambda done: _from_thread(loop, partial(self._take_comparison, mirrored, candidate, took_ns, done))
        )

    def _take_comparison(
        self, mirrored: "_Mirrored", candidate: Mapping[str, Tensor], took_ns: int, done: "Future[Comparison]"
    ) -> None:
        if mirrored not in self._under_way or done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._count_comparison(mirrored, candidate, took_ns, done.result())
        else:
            self._failed(mirrored, unexpected(error, "comparing two answers"))

    def _common_outputs(self, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the outputs that both arms can give."""
        if self._outputs is None:
            return outputs
        return {name: tensor for name, tensor in outputs.items() if name in self._outputs}

    def _count_comparison(
        self, mirrored: "_Mirrored", candidate: Mapping[str, Tensor], took_ns: int, found: Comparison
    ) -> None:
        """Count the result of a comparison, and keep the mismatch if it is among the worst."""
        figures = self.figures
        figures.compared += 1
        figures.disagreed += found.disagreed
        figures.mismatched += found.mismatched
        figures.top1_compared += found.top1_compared
        figures.top1_agreed += found.top1_agreed
        figures.max_absolute = max(figures.max_absolute, found.max_absolute)
        figures.max_relative = max(figures.max_relative, found.max_relative)
        figures.sum_absolute += found.mean_absolute
        figures.stable_latency.add(mirrored.took_ns)
        figures.candidate_latency.add(took_ns)
        kept = found.disagreed and self.mismatches.offer(
            found, mirrored.inputs, mirrored.outputs, candidate, mirrored.size
        )
        self._end(mirrored, kept)

    def _failed(self, mirrored: "_Mirrored", error: Answer) -> None:
        """Count a mirror that got no answer: as dropped if the candidate could not take it, else as failed."""
        if mirrored not in self._under_way:
            return
        if isinstance(error, ServingError) and self.mismatches.keeps:  # the message may quote an input
            self.figures.trouble = error.message, time.time()
        if isinstance(error, ServingError) and error.code is Code.UNAVAILABLE and not isinstance(error, NoAnswer):
            self._drop(mirrored, "refused")
            return
        if isinstance(error, ServingError) and error.code is Code.UNSUPPORTED:
            self._drop(mirrored, "unfit")
            return
        self.figures.failed += 1
        self._end(mirrored)

    def _drop(self, mirrored: "_Mirrored", reason: str) -> None:
        self.figures.dropped[reason] += 1
        self._end(mirrored)

    def _end(self, mirrored: "_Mirrored", kept: bool = False) -> None:
        """Forget a mirror, and release its memory unless a mismatch keeps it."""
        if mirrored not in self._under_way:
            return
        self._under_way.remove(mirrored)
        if mirrored.timer is not None:
            mirrored.timer.cancel()
        mirrored.request = None
        self._bytes -= mirrored.size
        if not kept:
            self._memory.give(mirrored.size)


class _AfterAnswer:
    """The responder for the last answer of a mirrored request. It sends the answer through the original responder, then mirrors
    the request."""

    __slots__ = ("_mirror", "_request", "_responder", "_took_ns", "flow")

    def __init__(self, mirror: Mirror, request: InFlightRequest, took_ns: int) -> None:
        self._mirror = mirror
        self._request = request
        self._responder: Responder = request.responder
        self._took_ns = took_ns
        self.flow: ResponseFlow | None = None

    def on_response(self, answer: Answer, final: bool) -> None:
        request, responder = self._request, self._responder
        request.responder = responder
        responder.on_response(answer, final)
        if isinstance(answer, InferenceResponse):
            safely("mirroring a request", self._mirror.take, request, answer, self._took_ns)


class _Mirrored:
    """One mirror: the inputs and outputs of the request that stable answered, and the request to the candidate."""

    __slots__ = ("asked_ns", "inputs", "outputs", "request", "size", "timer", "took_ns")

    def __init__(self, inputs: dict[str, Tensor], outputs: dict[str, Tensor], took_ns: int, size: int) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.took_ns = took_ns
        self.size = size
        self.asked_ns = 0
        self.request: InFlightRequest | None = None
        self.timer: asyncio.TimerHandle | None = None


def _from_thread(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop has ended
        pass


def _common(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return the outputs that both arms can give, or None if both can give all."""
    if one is None or other is None:
        return one if other is None else other
    return one & other


def _unfit(request: InFlightRequest, answer: InferenceResponse) -> bool:
    asked = request.asked
    if request.stream is not None or asked.sequence.id or asked.output_targets or answer.in_shared_memory:
        return True
    tensors = (*asked.inputs.values(), *answer.outputs.values())
    return not all(isinstance(tensor, np.ndarray) and not in_client_memory(tensor) for tensor in tensors)


def _size(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> int:
    """Return the size of tensors in bytes, or more than MAX_BYTES if a BYTES tensor has too many elements."""
    size = 0
    for tensor in (*inputs.values(), *outputs.values()):
        if tensor.dtype.kind != "O":
            size += tensor.nbytes
        elif tensor.size > MAX_ELEMENTS:
            return MAX_BYTES + 1
        else:
            size += sum(4 + len(element) for element in tensor.reshape(-1))
    return size


def _hold(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that outlive their request: copies of small tensors, and references to large tensors."""
    return {
        name: tensor if tensor.nbytes > COPIED_BYTES and tensor.flags.c_contiguous else np.array(tensor)
        for name, tensor in tensors.items()
    }

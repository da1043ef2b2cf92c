"""Runs one request through the DAG of an ensemble.

Each response of a decoupled step begins a branch: a separate run of the steps that follow, with its own tensors. The
responses of the branches are sent in the order in which the branches began.

A failed step is retried with the same inputs (`slipway.step_retries`). No other step is repeated. A try fails with an error or
at its timeout. A decoupled step that has sent a response is not retried.

The output tensors of a step carry its position in a sequence. Steps that read them, and the response of the ensemble, take
over this position, as in Triton's EnsembleContext. A step's model may change it with response parameters named `sequence_id`,
`sequence_start` and `sequence_end`.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from repository.config.step_retries import StepRetry
from serving.core.datatypes import Tensor
from serving.core.errors import ServingError, StepFailed, internal, invalid, safely, unavailable, unexpected
from serving.core.in_flight import Execution, InFlightRequest, QuietObserver
from serving.core.request import InferenceRequest, Parameters, ParameterValue, SequencePosition
from serving.core.response import Answer, InferenceResponse
from serving.core.response_flow import ResponseFlow
from serving.scheduling.ensemble_graph import EnsembleGraph, EnsembleStep, StepLimits
from serving.telemetry.statistics import Phases

_TIMES = ("slipway_queue_us", "slipway_compute_us")


class EnsembleOutputs(NamedTuple):
    """The outputs of one response of the ensemble.

    size: bytes of the decoupled step's response that began its branch. position: the sequence position of the outputs.
    """

    outputs: dict[str, Tensor]
    size: int
    position: SequencePosition


# Sends the request of a step to its model.
Infer = Callable[[InFlightRequest], None]
# Takes (request, answer, final). An answer of None ends a stream of responses.
OnEnsembleAnswer = Callable[["EnsembleRequest", EnsembleOutputs | ServingError | None, bool], None]


class EnsembleRequest(QuietObserver):
    """Owns the runs of one request, and observes its steps."""

    def __init__(
        self,
        graph: EnsembleGraph,
        limits: StepLimits,
        request: InFlightRequest,
        infer: Infer,
        on_answer: OnEnsembleAnswer,
    ) -> None:
        self.request = request
        self.graph = graph
        self.limits = limits
        self.infer = infer
        self._on_answer = on_answer
        self.plan = graph.plan(request.requested_outputs)
        # The observers of the steps: this object and, within an outer ensemble, the EnsembleRequest of that ensemble.
        self.observers = (self, *[each for each in request.observers if isinstance(each, EnsembleRequest)])
        self.ended = False
        self._took = [0, 0, 0]  # the total nanoseconds of all steps, by phase
        self._ready: deque[EnsembleOutputs] = deque()
        self._owed = 0  # bytes of decoupled steps' responses that no answer has carried to the client yet
        self._times: list[tuple[str, list[int]]] = []  # the times of each step, if the request has `slipway_timing`
        self._root = Run(self, self.plan.steps, {**graph.absent, **request.inputs})

    def begin(self) -> None:
        try:
            self._root.advance()
        except Exception as error:
            self.fail_unexpectedly(error)

    def fail_unexpectedly(self, error: Exception) -> None:
        """Answer with an error after an exception between two steps, and run no further step."""
        self.fail(unexpected(error, f"running the steps of '{self.graph.name}'"))

    def send_ready(self) -> None:
        """Send the ready responses, and the end if no more will come. Called when a run waits for no step."""
        if self.ended:
            return
        complete = self._root.collect(self._ready)
        while self._ready and not self.ended:  # the client may leave while it gets an answer
            outputs = self._ready.popleft()
            self._send(outputs, final=complete and not self._ready)
        if complete and not self.ended:
            self.ended = True
            self._on_answer(self, None, True)

    def _send(self, outputs: EnsembleOutputs, final: bool) -> None:
        self._owed -= outputs.size
        if self.request.stream is not None and not final:
            self._on_answer(self, outputs, False)
            return
        self.ended = True
        self._root.abandon()  # a step that has become decoupled since the ensemble was loaded may still run
        self._on_answer(self, outputs, True)

    def branch(self, response: InferenceResponse) -> int:
        """Count a response of a decoupled step as owed, and return its bytes in the client's flow."""
        self._owed += response.size
        return response.size

    def unused(self, size: int) -> None:
        """Release the bytes of a decoupled step's response in the client's flow, because no answer carries them."""
        self._owed -= size
        flow = self.request.responder.flow
        if flow is not None:
            flow.note_taken(size)

    def fail(self, error: ServingError) -> None:
        safely("cancelling the steps of an ensemble", self.abandon)
        self._on_answer(self, error, True)

    def abandon(self) -> None:
        """Cancel the running steps."""
        self.ended = True
        self._root.abandon()
        self.unused(self._owed)

    # -- times -----------------------------------------------------------------------------------------------------
    def steps_took(self) -> Phases:
        """Return the total times of the steps."""
        return Phases(*self._took)

    def timing(self) -> Parameters:
        """Return the parameters that `slipway_timing` asks for: the times of all steps together, and of each step as JSON."""
        if not self._times:
            return {}
        totals = [sum(column) for column in zip(*(times for _, times in self._times), strict=True)]
        steps = [{"model": name, **dict(zip(_TIMES, times, strict=True))} for name, times in self._times]
        return {**dict(zip(_TIMES, totals, strict=True)), "slipway_steps": json.dumps(steps)}

    def keep_times(self, name: str, parameters: Mapping[str, ParameterValue]) -> None:
        """Record the times from the parameters of a step's response."""
        times = [value for key in _TIMES if isinstance(value := parameters.get(key), int)]
        if len(times) == len(_TIMES):
            self._times.append((name, times))

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        took, phases = self._took, Phases.of(execution)
        took[0] += phases.input_ns
        took[1] += phases.infer_ns
        took[2] += phases.output_ns


class Run:
    """Runs each step of `waiting` once, when its input tensors are in `tensors`. None means that a tensor is absent."""

    def __init__(
        self,
        owner: EnsembleRequest,
        waiting: Sequence[int],
        tensors: dict[str, Tensor | None],
        size: int = 0,
        position: SequencePosition | None = None,
    ) -> None:
        """size: bytes of the response that began the run. position: the sequence position of `tensors`, if a step made them."""
        self._owner = owner
        self._graph = owner.graph
        self._limits = owner.limits
        self._waiting = list(waiting)
        self._tensors = tensors
        # The sequence positions of the tensors that steps have made.
        self._positions: dict[str, SequencePosition] = {} if position is None else dict.fromkeys(tensors, position)
        self._size = size
        self._running: dict[int, InFlightRequest] = {}
        self._entered: set[int] = set()  # the steps whose limits count this run
        self._without_room: set[int] = set()  # the steps that this run waits to enter
        self._tries: dict[int, _Tries] = {}  # the tries of the running steps that may be retried
        self._branches: deque[Run] = deque()
        self._collected = False
        self._readers = dict(owner.plan.readers)  # how many readers of each tensor do not have it yet

    def advance(self) -> None:
        """Start every step whose inputs exist."""
        steps, there = self._graph.steps, self._tensors.keys()
        ready: list[int] = []
        waiting: list[int] = []
        for index in self._waiting:
            (ready if steps[index].reads <= there else waiting).append(index)
        self._waiting = waiting
        for index in ready:
            if self._owner.ended:
                return
            self._enter(index)
        if not self._running and not self._without_room:
            self._owner.send_ready()

    def collect(self, ready: deque[EnsembleOutputs]) -> bool:
        """Add the responses that can be sent, in order. Return whether no more will come."""
        idle = not self._running and not self._without_room
        if idle and not self._collected:
            self._collected = True
            self._answer(ready)
        while self._branches:
            if not self._branches[0].collect(ready):
                return False
            self._branches.popleft()
        return idle

    def _answer(self, ready: deque[EnsembleOutputs]) -> None:
        owner = self._owner
        missing = [name for name in owner.plan.outputs if name not in self._tensors]
        if not missing:
            outputs = {name: tensor for name in owner.plan.outputs if (tensor := self._tensors[name]) is not None}
            positions = [self._positions[name] for name in outputs if name in self._positions]
            ready.append(EnsembleOutputs(outputs, self._size, positions[-1] if positions else owner.request.sequence))
        elif owner.request.stream is not None:
            owner.unused(self._size)
        else:
            owner.fail(internal(f"no step of the ensemble produced output '{missing[0]}'"))

    def abandon(self) -> None:
        for child in list(self._running.values()):
            child.cancel()
        for tries in self._tries.values():
            tries.end()
        self._tries.clear()
        self._running.clear()
        self._tensors.clear()
        while self._without_room:
            self._limits.withdraw(self._without_room.pop(), self._resume)
        while self._entered:
            self._limits.leave(self._entered.pop())
        while self._branches:
            self._branches.popleft().abandon()

    def _enter(self, index: int) -> None:
        """Start a step that has room, or wait for it."""
        if self._limits.enter(index, self._resume):
            self._entered.add(index)
            self._start(index, self._graph.steps[index])
        else:
            self._without_room.add(index)

    def _resume(self, index: int) -> None:
        """Try again to enter a step whose limit was reached before."""
        self._without_room.discard(index)
        try:
            self._enter(index)
        except Exception as error:
            self._owner.fail_unexpectedly(error)

    # -- steps -----------------------------------------------------------------------------------------------------
    def _start(self, index: int, step: EnsembleStep) -> None:
        owner, positions = self._owner, self._positions
        parent = owner.request
        sequence = parent.sequence
        inputs: dict[str, Tensor] = {}
        for key, name in step.inputs:
            tensor = self._tensors[name]
            if tensor is not None:
                inputs[key] = tensor
            if name in positions:
                sequence = positions[name]
        asked = InferenceRequest(
            model_name=step.model_name,
            model_version=step.model_version,
            inputs=inputs,
            requested_outputs=step.requested,
            id=parent.asked.id,
            parameters=parent.asked.parameters,
            priority=parent.asked.priority,
            timeout_us=parent.asked.timeout_us,
            sequence=sequence,
            device_outputs=parent.asked.device_outputs or step.feeds_steps,
            from_ensemble=True,
        )
        self._release(step)
        if step.retry is not None:
            self._tries[index] = _Tries(step.retry)
        self._try(index, step, asked)

    def _try(self, index: int, step: EnsembleStep, asked: InferenceRequest) -> None:
        """Send the request of a step to its model, for the first try or a retry."""
        owner = self._owner
        parent = owner.request
        child = InFlightRequest(asked, _StepResponder(self, index, parent.responder.flow), owner.observers)
        child.made_for(parent)
        for observer in parent.observers:
            safely("observing a step", observer.step, child)
        self._running[index] = child
        tries = self._tries.get(index)
        if tries is not None:
            tries.begin(lambda: self._took_too_long(index, child))
        try:
            owner.infer(child)
        except Exception as error:
            failure = unexpected(error, f"sending a request to '{step.model_name}'")
            child.refuse(failure)
            if tries is not None:
                tries.left = 0  # the model would refuse a retry too
            self.answered(index, failure, True)

    def _release(self, step: EnsembleStep) -> None:
        """Release the tensors whose last reader is `step`."""
        for name in step.reads:
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._tensors[name]

    def _took_too_long(self, index: int, child: InFlightRequest) -> None:
        """Fail a try at its timeout. Its late answer is dropped."""
        if self._running.get(index) is not child or _has_begun(child):
            return
        del self._running[index]
        late = unavailable(f"it has not answered within {self._tries[index].retry.timeout_ms} ms")
        try:
            child.cancel()  # this run drops the answer
            self._take_answer(index, child, late, True)
        except Exception as error:
            self._owner.fail_unexpectedly(error)

    def _try_again(self, index: int, step: EnsembleStep, child: InFlightRequest) -> bool:
        """Retry a failed step. Return False if no try is left."""
        tries = self._tries[index]
        if self._owner.ended or not tries.left or _has_begun(child):
            return False
        tries.left -= 1
        self._try(index, step, child.asked)
        return True

    def answered(self, index: int, answer: Answer, final: bool) -> None:
        try:
            self._go_on(index, answer, final)
        except Exception as error:
            self._owner.fail_unexpectedly(error)

    def _go_on(self, index: int, answer: Answer, final: bool) -> None:
        child = self._running.pop(index, None) if final else self._running.get(index)
        if child is not None:
            self._take_answer(index, child, answer, final)

    def _take_answer(self, index: int, child: InFlightRequest, answer: Answer, final: bool) -> None:
        step = self._graph.steps[index]
        error = answer if isinstance(answer, ServingError) else None
        if final and index in self._tries:
            self._tries[index].end()
            if error is not None and self._try_again(index, step, child):
                return
            del self._tries[index]
        if final and index in self._entered:
            self._entered.remove(index)
            self._limits.leave(index)
        if self._owner.ended:
            return
        if answer is None and child.stream is None:
            error = internal("the step ended without a response")
        elif isinstance(answer, InferenceResponse):
            try:
                self._take(index, step, child, answer)
            except ServingError as wrong:
                error = wrong
        if error is not None:
            self._owner.fail(StepFailed(self._graph.name, step.model_name, error))
            return
        self.advance()

    def _take(self, index: int, step: EnsembleStep, child: InFlightRequest, response: InferenceResponse) -> None:
        position = child.sequence
        if response.parameters:
            self._owner.keep_times(step.model_name, response.parameters)
            position = _position_after(position, response.parameters)
        readers, outputs = self._readers, response.outputs
        tensors: dict[str, Tensor | None] = {name: outputs.get(key) for key, name in step.outputs if readers.get(name)}
        if child.stream is not None:
            after = [number for number in self._graph.after(index) if number in self._owner.plan.steps]
            branch = Run(self._owner, after, tensors, self._owner.branch(response), position)
            self._branches.append(branch)
            branch.advance()
        else:
            self._tensors.update(tensors)
            self._positions.update(dict.fromkeys(tensors, position))


class _Tries:
    """The number of tries that a step has left, and the timer of the current try."""

    __slots__ = ("_timer", "left", "retry")

    def __init__(self, retry: StepRetry) -> None:
        self.retry = retry
        self.left = retry.retries
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, over: Callable[[], None]) -> None:
        if self.retry.timeout_ms:
            self._timer = asyncio.get_running_loop().call_later(self.retry.timeout_ms / 1000, over)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _StepResponder:
    """Hands the answers of a step to its run."""

    __slots__ = ("_index", "_run", "flow")

    def __init__(self, run: Run, index: int, flow: ResponseFlow | None) -> None:
        self._run = run
        self._index = index
        self.flow = flow

    def on_response(self, answer: Answer, final: bool) -> None:
        self._run.answered(self._index, answer, final)


def _has_begun(child: InFlightRequest) -> bool:
    """Return whether a decoupled step has sent a response."""
    return child.stream is not None and child.stream.responses > 0


def _position_after(position: SequencePosition, parameters: Mapping[str, ParameterValue]) -> SequencePosition:
    """Return the sequence position of a step's response with these parameters. Raises INVALID_ARG if a parameter has the wrong
    type."""
    if parameters.keys().isdisjoint(("sequence_id", "sequence_start", "sequence_end")):
        return position
    identity = parameters.get("sequence_id", position.id)
    start, end = (parameters.get(name, False) for name in ("sequence_start", "sequence_end"))
    if isinstance(identity, bool | float) or not isinstance(start, bool) or not isinstance(end, bool):
        raise invalid(
            "its response has wrong parameters: expected 'sequence_id' as a number or a string, 'sequence_start' and "
            "'sequence_end' as booleans"
        )
    return SequencePosition(identity, start, end)

"""One request's way through the DAG of an ensemble.

Each response of a decoupled step begins a branch: a run of its own through the steps that follow, with its own tensors. What
branches answer goes out in the order in which they began.

A tensor that a step has made carries the sequence of that step: its reader is asked within it, and the response tells it, as
Triton's EnsembleContext does. A step's model may change it with response parameters of the same names.
"""

import json
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from serving.core.batch import Batch
from serving.core.errors import ServingError, internal, invalid, safely, unexpected
from serving.core.request import InferenceRequest, InferenceResponse, Parameters, Tensor
from serving.telemetry.statistics import NO_PHASES, Phases

if TYPE_CHECKING:
    from serving.scheduling.ensemble import EnsembleScheduler

_TIMES = ("slipway_queue_us", "slipway_compute_us")


class SequencePlace(NamedTuple):
    """What ties a request to a sequence; the fields are named as the protocol's parameters."""

    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False

    @classmethod
    def of(cls, request: InferenceRequest) -> "SequencePlace":
        return cls(request.sequence_id, request.sequence_start, request.sequence_end)

    def changed_by(self, parameters: Parameters) -> "SequencePlace":
        """The place that a response with these parameters gives; INVALID_ARG where one is of the wrong kind."""
        if parameters.keys().isdisjoint(self._fields):
            return self
        identity = parameters.get("sequence_id", self.sequence_id)
        start, end = (parameters.get(name, False) for name in self._fields[1:])
        if isinstance(identity, bool | float) or not isinstance(start, bool) or not isinstance(end, bool):
            raise invalid(
                "its response has wrong parameters: expected 'sequence_id' as a number or a string, 'sequence_start' and "
                "'sequence_end' as booleans"
            )
        return SequencePlace(identity, start, end)


class Answer(NamedTuple):
    """One response of the ensemble, before it is made one."""

    outputs: dict[str, Tensor]
    size: int  # bytes of the decoupled step's response that led to it
    place: SequencePlace


class EnsembleRequest:
    """Owns the runs of a request; an observer of its steps."""

    def __init__(self, scheduler: "EnsembleScheduler", request: InferenceRequest) -> None:
        self.request = request
        self.scheduler = scheduler
        wanted = request.requested or tuple(scheduler.outputs)
        self.outputs = [name for name in scheduler.outputs if name in wanted]
        self.steps = scheduler.steps_for(self.outputs)
        self.ended = False
        self.steps_took = NO_PHASES
        self._ready: deque[Answer] = deque()
        self._owed = 0  # bytes of decoupled steps' responses that no answer has carried to the client yet
        self._times: list[tuple[str, list[int]]] = []  # of each step, where the request asked (slipway_timing)
        self._root = Run(self, self.steps, {**scheduler.absent, **request.inputs})

    def begin(self) -> None:
        try:
            self._root.advance()
        except Exception as error:
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """Something was raised between two steps: that is the answer, and nothing more runs."""
        self.fail(unexpected(error, f"running the steps of '{self.scheduler.name}'"))

    def settled(self) -> None:
        """A run has nothing under way any more: send what is ready, and the end when nothing more will come."""
        if self.ended:
            return
        complete = self._root.collect(self._ready)
        while self._ready and not self.ended:  # a client may go while it is answered
            answer = self._ready.popleft()
            self._deliver(answer, final=complete and not self._ready)
        if complete and not self.ended:
            self.ended = True
            self.scheduler.answer(self, None)

    def _deliver(self, answer: Answer, final: bool) -> None:
        self._owed -= answer.size
        if self.request.decoupled and not final:
            self.scheduler.respond(self, answer)
            return
        self.ended = True
        self._root.abandon()  # a step that has become decoupled since the ensemble was loaded may go on
        self.scheduler.answer(self, answer)

    def branch(self, response: InferenceResponse) -> int:
        """A decoupled step has sent a response; what it counts against the client's flow."""
        self._owed += response.size
        return response.size

    def unused(self, size: int) -> None:
        """A response of a decoupled step that led to no answer."""
        self._owed -= size
        if self.request.flow is not None:
            self.request.flow.taken(size)

    def fail(self, error: ServingError) -> None:
        safely("cancelling the steps of an ensemble", self.abandon)
        self.scheduler.answer(self, error)

    def abandon(self) -> None:
        """Cancel the steps under way."""
        self.ended = True
        self._root.abandon()
        self.unused(self._owed)

    # -- times -----------------------------------------------------------------------------------------------------
    def timing(self) -> Parameters:
        """Of all steps together, and of each as JSON."""
        if not self._times:
            return {}
        totals = [sum(column) for column in zip(*(times for _, times in self._times), strict=True)]
        steps = [{"model": name, **dict(zip(_TIMES, times, strict=True))} for name, times in self._times]
        return {**dict(zip(_TIMES, totals, strict=True)), "slipway_steps": json.dumps(steps)}

    def keep_times(self, name: str, parameters: Parameters) -> None:
        times = [value for key in _TIMES if isinstance(value := parameters.get(key), int)]
        if len(times) == len(_TIMES):
            self._times.append((name, times))

    # -- as an observer of its steps -------------------------------------------------------------------------------
    def executed(self, request: InferenceRequest, batch: Batch) -> None:
        self.steps_took = self.steps_took.plus(Phases.of(batch))

    def step(self, child: InferenceRequest) -> None:
        """What a step's model asks of others is not of this ensemble."""

    def context(self) -> str:
        return ""

    def answered(
        self, request: InferenceRequest, response: "InferenceResponse | ServingError | None", final: bool
    ) -> None:
        """`on_response` has it."""


class Run:
    """The steps of `waiting` that depend on `tensors`, each once. A tensor that is None will not come."""

    def __init__(
        self, owner: EnsembleRequest, waiting: Sequence[int], tensors: dict[str, Tensor | None], size: int = 0
    ) -> None:
        self._owner = owner
        self._scheduler = owner.scheduler
        self._waiting = list(waiting)
        self._tensors = tensors
        self._places: dict[str, SequencePlace] = {}  # of the tensors that steps have made
        self._size = size  # bytes of the response that began it
        self._running: dict[int, InferenceRequest] = {}
        self._held: set[int] = set()  # steps that have no room
        self._branches: deque[Run] = deque()
        self._collected = False
        self._readers = Counter(owner.outputs)  # how many will still read a tensor; the answer is one of them
        for index in owner.steps:
            self._readers.update(set(self._scheduler.steps[index].input_map.values()))

    def advance(self) -> None:
        """Start every step whose inputs exist."""
        steps = self._scheduler.steps
        ready = [
            index for index in self._waiting if all(name in self._tensors for name in steps[index].input_map.values())
        ]
        self._waiting = [index for index in self._waiting if index not in ready]
        for index in ready:
            if self._owner.ended:
                return
            if self._scheduler.may_start(self, index):
                self._start(index, steps[index])
            else:
                self._held.add(index)
        if not self._running and not self._held:
            self._owner.settled()

    def collect(self, ready: deque[Answer]) -> bool:
        """Add what can be sent, in order; whether nothing more will come."""
        settled = not self._running and not self._held
        if settled and not self._collected:
            self._collected = True
            self._answer(ready)
        while self._branches:
            if not self._branches[0].collect(ready):
                return False
            self._branches.popleft()
        return settled

    def _answer(self, ready: deque[Answer]) -> None:
        owner = self._owner
        missing = [name for name in owner.outputs if name not in self._tensors]
        if not missing:
            outputs = {name: tensor for name in owner.outputs if (tensor := self._tensors[name]) is not None}
            told = [self._places[name] for name in outputs if name in self._places]
            ready.append(Answer(outputs, self._size, told[-1] if told else SequencePlace.of(owner.request)))
        elif owner.request.decoupled:
            owner.unused(self._size)
        else:
            owner.fail(internal(f"no step of the ensemble produced output '{missing[0]}'"))

    def abandon(self) -> None:
        for child in list(self._running.values()):
            child.cancel()
        left = list(self._running)
        self._running.clear()
        self._held.clear()
        self._tensors.clear()
        for index in left:
            self._scheduler.step_left(index)
        while self._branches:
            self._branches.popleft().abandon()

    def resume(self, index: int) -> None:
        """A step that had no room has."""
        if index in self._held:
            self._held.discard(index)
            self._scheduler.inflight[index] += 1
            try:
                self._start(index, self._scheduler.steps[index])
            except Exception as error:
                self._owner.broke(error)

    # -- steps -----------------------------------------------------------------------------------------------------
    def _start(self, index: int, step: ModelEnsembling.Step) -> None:
        parent = self._owner.request
        read = [self._places[name] for name in step.input_map.values() if name in self._places]
        place = read[-1] if read else SequencePlace.of(parent)
        child = InferenceRequest(
            model_name=step.model_name,
            model_version="" if step.model_version < 1 else str(step.model_version),
            inputs={
                key: tensor for key, value in step.input_map.items() if (tensor := self._tensors[value]) is not None
            },
            requested=tuple(step.output_map),
            on_response=lambda answer, final: self._answered(index, answer, final),
            id=parent.id,
            parameters=parent.parameters,
            priority=parent.priority,
            timeout_us=parent.timeout_us,
            sequence_id=place.sequence_id,
            sequence_start=place.sequence_start,
            sequence_end=place.sequence_end,
            of_ensemble=True,
            device_outputs=parent.device_outputs or self._scheduler.feeds[index],
            flow=parent.flow,
            observers=(self._owner, *(each for each in parent.observers if isinstance(each, EnsembleRequest))),
        )
        for observer in parent.observers:
            safely("observing a step", observer.step, child)
        self._running[index] = child
        self._release(step)
        try:
            self._scheduler.infer_step(child)
        except Exception as error:
            failure = unexpected(error, f"sending a request to '{step.model_name}'")
            child.refused(failure)
            self._answered(index, failure, True)

    def _release(self, step: ModelEnsembling.Step) -> None:
        """Let go of the tensors that `step` was the last to read."""
        for name in set(step.input_map.values()):
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._tensors[name]

    def _answered(self, index: int, answer: "InferenceResponse | ServingError | None", final: bool) -> None:
        try:
            self._go_on(index, answer, final)
        except Exception as error:
            self._owner.broke(error)

    def _go_on(self, index: int, answer: "InferenceResponse | ServingError | None", final: bool) -> None:
        child = self._running.pop(index, None) if final else self._running.get(index)
        if child is None:
            return
        if final:
            self._scheduler.step_left(index)
        if self._owner.ended:
            return
        step = self._scheduler.steps[index]
        error = answer if isinstance(answer, ServingError) else None
        if answer is None and not child.decoupled:
            error = internal("the step ended without a response")
        elif isinstance(answer, InferenceResponse):
            try:
                self._take(index, step, child, answer)
            except ServingError as wrong:
                error = wrong
        if error is not None:
            where = f"in ensemble '{self._scheduler.name}', step '{step.model_name}'"
            self._owner.fail(ServingError(error.code, f"{where}: {error.message}"))
            return
        self.advance()

    def _take(self, index: int, step: ModelEnsembling.Step, child: InferenceRequest, answer: InferenceResponse) -> None:
        place = SequencePlace.of(child)
        if answer.parameters:
            self._owner.keep_times(step.model_name, answer.parameters)
            place = place.changed_by(answer.parameters)
        tensors: dict[str, Tensor | None] = {
            value: answer.outputs.get(key) for key, value in step.output_map.items() if self._readers[value]
        }
        if child.decoupled:
            after = [number for number in self._scheduler.after[index] if number in self._owner.steps]
            branch = Run(self._owner, after, tensors, self._owner.branch(answer))
            branch._places = dict.fromkeys(tensors, place)
            self._branches.append(branch)
            branch.advance()
        else:
            self._tensors.update(tensors)
            self._places.update(dict.fromkeys(tensors, place))

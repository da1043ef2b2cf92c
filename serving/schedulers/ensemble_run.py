"""One request's way through the DAG of an ensemble.

Each response of a decoupled step begins a branch: a run of its own through the steps that follow, with its own tensors. What
branches answer goes out in the order in which they began.
"""

import json
from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tritonclient.grpc.model_config_pb2 import ModelEnsembling

from serving.batch import Batch
from serving.errors import ServingError, internal
from serving.request import InferenceRequest, InferenceResponse, Parameters, Tensor
from serving.statistics import NO_PHASES, Phases

if TYPE_CHECKING:
    from serving.schedulers.ensemble import EnsembleScheduler

_TIMES = ("slipway_queue_us", "slipway_compute_us")


class EnsembleRequest:
    """Owns the runs of a request; an observer of its steps."""

    def __init__(self, scheduler: "EnsembleScheduler", request: InferenceRequest) -> None:
        self.request = request
        self.scheduler = scheduler
        wanted = request.requested or tuple(scheduler.outputs)
        self.outputs = [name for name in scheduler.outputs if name in wanted]
        self.ended = False
        self.steps_took = NO_PHASES
        self._owed = 0  # bytes of decoupled steps' responses that no answer has carried to the client yet
        self._times: list[tuple[str, list[int]]] = []  # of each step, where the request asked (slipway_timing)
        self._root = Run(self, range(len(scheduler.steps)), {**scheduler.absent, **request.inputs})

    def begin(self) -> None:
        self._root.advance()

    def settled(self) -> None:
        """A run has nothing under way any more: send what is ready, and the end when nothing more will come."""
        if not self.ended and self._root.deliver() and not self.ended:
            self.ended = True
            self.scheduler.answer(self, None)

    def deliver(self, outputs: dict[str, Tensor], size: int) -> None:
        self._owed -= size
        if self.request.decoupled:
            self.scheduler.respond(self, outputs, size)
            return
        self.ended = True
        self._root.abandon()  # a step that has become decoupled since the ensemble was loaded may go on
        self.scheduler.answer(self, outputs)

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
        self.abandon()
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
        self._size = size  # bytes of the response that began it
        self._running: dict[int, InferenceRequest] = {}
        self._held: set[int] = set()  # steps that have no room
        self._branches: deque[Run] = deque()
        self._delivered = False
        self._readers = Counter(owner.outputs)  # how many will still read a tensor; the answer is one of them
        for step in self._scheduler.steps:
            self._readers.update(set(step.input_map.values()))

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

    def deliver(self) -> bool:
        """Send what is ready, in order; whether nothing more will come."""
        settled = not self._running and not self._held
        if settled and not self._delivered:
            self._delivered = True
            self._answer()
        while self._branches:
            if not self._branches[0].deliver() or self._owner.ended:  # a client may go while it is answered
                return False
            self._branches.popleft()
        return settled

    def _answer(self) -> None:
        owner = self._owner
        missing = [name for name in owner.outputs if name not in self._tensors]
        if not missing:
            outputs = {name: tensor for name in owner.outputs if (tensor := self._tensors[name]) is not None}
            owner.deliver(outputs, self._size)
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
            self._start(index, self._scheduler.steps[index])

    # -- steps -----------------------------------------------------------------------------------------------------
    def _start(self, index: int, step: ModelEnsembling.Step) -> None:
        parent = self._owner.request
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
            sequence_id=parent.sequence_id,
            sequence_start=parent.sequence_start,
            sequence_end=parent.sequence_end,
            of_ensemble=True,
            device_outputs=parent.device_outputs or self._scheduler.feeds[index],
            flow=parent.flow,
            observers=(self._owner, *(each for each in parent.observers if isinstance(each, EnsembleRequest))),
        )
        for observer in parent.observers:
            observer.step(child)
        self._running[index] = child
        self._release(step)
        try:
            self._scheduler.infer_step(child)
        except ServingError as error:
            child.refused(error)
            self._answered(index, error, True)

    def _release(self, step: ModelEnsembling.Step) -> None:
        """Let go of the tensors that `step` was the last to read."""
        for name in set(step.input_map.values()):
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._tensors[name]

    def _answered(self, index: int, answer: "InferenceResponse | ServingError | None", final: bool) -> None:
        child = self._running.pop(index, None) if final else self._running.get(index)
        if child is None:
            return
        if final:
            self._scheduler.step_left(index)
        if self._owner.ended:
            return
        step = self._scheduler.steps[index]
        if isinstance(answer, ServingError) or (answer is None and not child.decoupled):
            error = answer or internal("the step ended without a response")
            where = f"in ensemble '{self._scheduler.name}', step '{step.model_name}'"
            self._owner.fail(ServingError(error.code, f"{where}: {error.message}"))
            return
        if answer is not None:
            self._take(index, step, answer, child.decoupled)
        self.advance()

    def _take(self, index: int, step: ModelEnsembling.Step, answer: InferenceResponse, decoupled: bool) -> None:
        if answer.parameters:
            self._owner.keep_times(step.model_name, answer.parameters)
        tensors: dict[str, Tensor | None] = {value: answer.outputs.get(key) for key, value in step.output_map.items()}
        if decoupled:
            branch = Run(self._owner, self._scheduler.after[index], tensors, self._owner.branch(answer))
            self._branches.append(branch)
            branch.advance()
        else:
            self._tensors.update(tensors)

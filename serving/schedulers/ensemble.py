"""The ensemble scheduler: runs the steps of a DAG, handing tensors on by reference.

A step starts as soon as it is known of each of its inputs whether it comes: an optional input of the ensemble may stay
away, and so may an output of a step; the step's own model says whether it can do without. A tensor is let go when its last
reader has it. The failure of one step fails the request, names the step and cancels what else it started.
Source: Triton, docs/user_guide/ensemble_models.md.
"""

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

from serving.batch import Batch
from serving.device_tensor import host_array
from serving.errors import ServingError, internal
from serving.request import InferenceRequest, InferenceResponse, Parameters, Tensor
from serving.schedulers.base import Scheduler
from serving.statistics import NO_PHASES, Phases

Infer = Callable[[InferenceRequest], None]
_TIMES = ("slipway_queue_us", "slipway_compute_us")
# The last argument: how long its steps took, all together.
OnAnswer = Callable[[InferenceRequest, "InferenceResponse | ServingError", Phases], None]


class EnsembleScheduler(Scheduler):
    """Queues nothing itself: its steps wait in their models' schedulers."""

    def __init__(self, config: ModelConfig, version: int, infer: Infer, on_answer: OnAnswer) -> None:
        self._version = version
        self._infer = infer
        self._on_answer = on_answer
        self._runs: dict[InferenceRequest, _Run] = {}
        # How many requests are at each step, and the runs that wait for room there (max_inflight_requests).
        self.inflight: Counter[int] = Counter()
        self.waiting: defaultdict[int, deque[_Run]] = defaultdict(deque)
        self._resuming: set[int] = set()
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        self.name = config.name
        self.steps = list(config.ensemble_scheduling.step)
        self.outputs = [output.name for output in config.output]
        self.absent: dict[str, Tensor | None] = {tensor.name: None for tensor in config.input if tensor.optional}
        # A tensor that no step reads goes to the client: its model brings it to the host.
        read = {value for step in self.steps for value in step.input_map.values()}
        self.feeds = [not read.isdisjoint(step.output_map.values()) for step in self.steps]
        self.limit = config.ensemble_scheduling.max_inflight_requests  # 0: none

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferenceRequest) -> None:
        run = self._runs[request] = _Run(self, request)
        run.advance()

    def remove(self, request: InferenceRequest) -> bool:
        run = self._runs.pop(request, None)
        if run is not None:
            run.abandon()
        return run is not None

    def may_start(self, run: "_Run", index: int) -> bool:
        """Whether a step has room for one more request; where it has none, the run is resumed later."""
        if not self.limit or self.inflight[index] < self.limit:
            self.inflight[index] += 1
            return True
        self.waiting[index].append(run)
        return False

    def step_left(self, index: int) -> None:
        """A request has left a step: whoever has waited for it longest may go on."""
        self.inflight[index] -= 1
        waiting = self.waiting[index]
        if index in self._resuming:  # a resumed request failed at once: the loop below is under way
            return
        self._resuming.add(index)
        while waiting and not (self.limit and self.inflight[index] >= self.limit):
            waiting.popleft().resume(index)
        self._resuming.discard(index)

    def infer_step(self, request: InferenceRequest) -> None:
        self._infer(request)

    def answer(self, run: "_Run", answer: "InferenceResponse | ServingError") -> None:
        if self._runs.pop(run.request, None) is not None:
            self._on_answer(run.request, answer, run.steps_took)

    def respond(self, run: "_Run", outputs: dict[str, Tensor]) -> None:
        if not run.request.device_outputs:
            outputs = {name: host_array(tensor) for name, tensor in outputs.items()}
        self.answer(run, InferenceResponse(self.name, self._version, run.request.id, outputs, run.timing()))


class _Run:
    """One request's way through the DAG."""

    def __init__(self, scheduler: EnsembleScheduler, request: InferenceRequest) -> None:
        self.request = request
        self._scheduler = scheduler
        self._tensors: dict[str, Tensor | None] = {**scheduler.absent, **request.inputs}  # None: it will not come
        self._waiting = list(range(len(scheduler.steps)))
        self._running: dict[int, InferenceRequest] = {}
        self._held: set[int] = set()  # steps that have no room
        wanted = request.requested or tuple(scheduler.outputs)
        self._outputs = [name for name in scheduler.outputs if name in wanted]
        self._readers = Counter(self._outputs)  # how many will still read a tensor; the answer is one of them
        for step in scheduler.steps:
            self._readers.update(set(step.input_map.values()))
        self._ended = False
        self.steps_took = NO_PHASES
        self._times: list[tuple[str, list[int]]] = []  # of each step, where the request asked (slipway_timing)

    def timing(self) -> Parameters:
        """Of all steps together, and of each as JSON."""
        if not self._times:
            return {}
        totals = [sum(column) for column in zip(*(times for _, times in self._times), strict=True)]
        steps = [{"model": name, **dict(zip(_TIMES, times, strict=True))} for name, times in self._times]
        return {**dict(zip(_TIMES, totals, strict=True)), "slipway_steps": json.dumps(steps)}

    def _keep_times(self, name: str, parameters: Parameters) -> None:
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

    def advance(self) -> None:
        """Start every step whose inputs exist; answer when all wanted outputs do and nothing runs any more."""
        steps = self._scheduler.steps
        ready = [
            index for index in self._waiting if all(name in self._tensors for name in steps[index].input_map.values())
        ]
        self._waiting = [index for index in self._waiting if index not in ready]
        for index in ready:
            if self._ended:
                return
            if self._scheduler.may_start(self, index):
                self._start(index, steps[index])
            else:
                self._held.add(index)
        if self._ended or self._running or self._held:
            return
        outputs = {name: tensor for name in self._outputs if (tensor := self._tensors.get(name)) is not None}
        missing = [name for name in self._outputs if name not in outputs]
        self._ended = True
        if missing:
            self._scheduler.answer(self, internal(f"no step of the ensemble produced output '{missing[0]}'"))
        else:
            self._scheduler.respond(self, outputs)

    def abandon(self) -> None:
        """Cancel the steps under way."""
        self._ended = True
        for child in list(self._running.values()):
            child.cancel()
        left = list(self._running)
        self._running.clear()
        self._held.clear()
        self._tensors.clear()
        for index in left:
            self._scheduler.step_left(index)

    def resume(self, index: int) -> None:
        """A step that had no room has."""
        if index in self._held:
            self._held.discard(index)
            self._scheduler.inflight[index] += 1
            self._start(index, self._scheduler.steps[index])

    def _start(self, index: int, step: ModelEnsembling.Step) -> None:
        parent = self.request
        child = InferenceRequest(
            model_name=step.model_name,
            model_version="" if step.model_version < 1 else str(step.model_version),
            inputs={
                key: tensor for key, value in step.input_map.items() if (tensor := self._tensors[value]) is not None
            },
            requested=tuple(step.output_map),
            on_response=lambda answer, final: self._step_done(index, answer),
            id=parent.id,
            parameters=parent.parameters,
            priority=parent.priority,
            timeout_us=parent.timeout_us,
            sequence_id=parent.sequence_id,
            sequence_start=parent.sequence_start,
            sequence_end=parent.sequence_end,
            device_outputs=parent.device_outputs or self._scheduler.feeds[index],
            observers=(self, *(run for run in parent.observers if isinstance(run, _Run))),
        )
        for observer in parent.observers:
            observer.step(child)
        self._running[index] = child
        self._release(step)
        try:
            self._scheduler.infer_step(child)
        except ServingError as error:
            self._step_done(index, error)

    def _release(self, step: ModelEnsembling.Step) -> None:
        """Let go of the tensors that `step` was the last to read."""
        for name in set(step.input_map.values()):
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._tensors[name]

    def _step_done(self, index: int, answer: "InferenceResponse | ServingError | None") -> None:
        if self._running.pop(index, None) is not None:
            self._scheduler.step_left(index)
        if self._ended:
            return
        step = self._scheduler.steps[index]
        if isinstance(answer, InferenceResponse):
            for key, value in step.output_map.items():
                self._tensors[value] = answer.outputs.get(key)
            if answer.parameters:
                self._keep_times(step.model_name, answer.parameters)
            self.advance()
            return
        self.abandon()
        error = answer or internal("the step ended without a response")
        failure = ServingError(
            error.code, f"in ensemble '{self._scheduler.name}', step '{step.model_name}': {error.message}"
        )
        self._scheduler.answer(self, failure)

"""The ensemble scheduler: runs the steps of a DAG, handing tensors on by reference.

A step starts as soon as it is known of each of its inputs whether it comes: an optional input of the ensemble may stay
away, and so may an output of a step; the step's own model says whether it can do without. A tensor is let go when its last
reader has it. The failure of one step fails the request, names the step and cancels what else it started. An ensemble with a
decoupled step is decoupled itself (serving.configuration.ensemble_check).
Source: Triton, docs/user_guide/ensemble_models.md.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

from serving.core.device_tensor import host_array
from serving.core.errors import ServingError, unexpected
from serving.core.request import InferenceRequest, InferenceResponse, Tensor
from serving.core.tensor_check import with_rank
from serving.scheduling.base import Scheduler
from serving.scheduling.ensemble_run import Answer, EnsembleRequest, Run
from serving.telemetry.statistics import Phases

Infer = Callable[[InferenceRequest], None]
# The end of a request, None where responses have come before it; the last argument: how long its steps took, all together.
OnAnswer = Callable[[InferenceRequest, "InferenceResponse | ServingError | None", Phases], None]
# One response of a decoupled ensemble; others, or the end, follow.
OnPart = Callable[[InferenceRequest, InferenceResponse], None]


class EnsembleScheduler(Scheduler):
    """Queues nothing itself: its steps wait in their models' schedulers."""

    def __init__(self, config: ModelConfig, version: int, infer: Infer, on_answer: OnAnswer, on_part: OnPart) -> None:
        self._version = version
        self._infer = infer
        self._on_answer = on_answer
        self._on_part = on_part
        self._under_way: dict[InferenceRequest, EnsembleRequest] = {}
        # How many requests are at each step, and the runs that wait for room there (max_inflight_requests).
        self.inflight: Counter[int] = Counter()
        self.waiting: defaultdict[int, deque[Run]] = defaultdict(deque)
        self._resuming: set[int] = set()
        self.configure(config)

    def configure(self, config: ModelConfig) -> None:
        self.name = config.name
        self.steps = list(config.ensemble_scheduling.step)
        self._batched = config.max_batch_size > 0
        self._ranks = {
            output.name: len(output.reshape.shape if output.HasField("reshape") else output.dims)
            for output in config.output
        }
        self.outputs = [output.name for output in config.output]
        self.absent: dict[str, Tensor | None] = {tensor.name: None for tensor in config.input if tensor.optional}
        # A tensor that no step reads goes to the client: its model brings it to the host.
        read = {value for step in self.steps for value in step.input_map.values()}
        self.feeds = [not read.isdisjoint(step.output_map.values()) for step in self.steps]
        self.after = [_after(self.steps, index) for index in range(len(self.steps))]
        self._makers = {value: index for index, step in enumerate(self.steps) for value in step.output_map.values()}
        self.limit = config.ensemble_scheduling.max_inflight_requests  # 0: none

    def steps_for(self, outputs: list[str]) -> list[int]:
        """The steps that these outputs depend on; others do not run, as in Triton."""
        if len(outputs) == len(self.outputs):
            return list(range(len(self.steps)))
        needed: set[int] = set()
        tensors = list(outputs)
        while tensors:
            maker = self._makers.get(tensors.pop())
            if maker is not None and maker not in needed:
                needed.add(maker)
                tensors += self.steps[maker].input_map.values()
        return sorted(needed)

    @property
    def pending(self) -> int:
        return 0

    def submit(self, request: InferenceRequest) -> None:
        if request.decoupled:
            request.response_from_ns = request.queued_ns
        under_way = self._under_way[request] = EnsembleRequest(self, request)
        under_way.begin()

    def remove(self, request: InferenceRequest) -> bool:
        under_way = self._under_way.pop(request, None)
        if under_way is not None:
            under_way.abandon()
        return under_way is not None

    def may_start(self, run: Run, index: int) -> bool:
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

    def answer(self, under_way: EnsembleRequest, answer: "Answer | ServingError | None") -> None:
        if self._under_way.pop(under_way.request, None) is not None:
            try:
                final = self._response(under_way, answer) if isinstance(answer, Answer) else answer
            except Exception as error:
                final = unexpected(error, f"answering a request of '{self.name}'")
            self._on_answer(under_way.request, final, under_way.steps_took)

    def respond(self, under_way: EnsembleRequest, answer: Answer) -> None:
        self._on_part(under_way.request, self._response(under_way, answer))

    def _response(self, under_way: EnsembleRequest, answer: Answer) -> InferenceResponse:
        request, outputs = under_way.request, answer.outputs
        if not request.device_outputs:
            outputs = {name: host_array(tensor) for name, tensor in outputs.items()}
        outputs = {name: with_rank(tensor, self._ranks[name], self._batched) for name, tensor in outputs.items()}
        parameters = answer.place._asdict() | under_way.timing()
        return InferenceResponse(self.name, self._version, request.id, outputs, parameters, answer.size)


def _after(steps: list[ModelEnsembling.Step], index: int) -> list[int]:
    """The steps that depend on this one."""
    tensors = set(steps[index].output_map.values())
    found: list[int] = []
    while more := [
        number for number, step in enumerate(steps) if number not in found and tensors & set(step.input_map.values())
    ]:
        found += more
        tensors.update(value for number in more for value in steps[number].output_map.values())
    return found

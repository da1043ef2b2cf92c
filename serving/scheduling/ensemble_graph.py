"""The steps of an ensemble and the tensors between them, as its configuration describes them.

Source: Triton, docs/user_guide/ensemble_models.md.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.step_retries import StepRetry, step_retries
from serving.core.datatypes import Tensor
from serving.core.tensor_check import with_rank
from serving.core.waiters import Waiters

# Called with a step that has room for a request.
Resume = Callable[[int], None]


class EnsembleStep(NamedTuple):
    """One step, read once from its configuration, because reading a protobuf map takes longer than running some steps.

    inputs, outputs: (name for the step's model, tensor of the ensemble). requested: the outputs by the model's names.
    reads: the tensors that it depends on. feeds_steps: whether another step reads its outputs, so that they need not go to the
    host. retry: its number of tries and its timeout; None without them.
    """

    model_name: str
    model_version: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    requested: tuple[str, ...]
    reads: frozenset[str]
    feeds_steps: bool
    retry: StepRetry | None


class StepPlan(NamedTuple):
    """The work for a request: its outputs, in order, the steps that make them, and the number of readers of each tensor; the
    answer is one of the readers."""

    outputs: list[str]
    steps: list[int]
    readers: dict[str, int]


class EnsembleGraph:
    """Built once from a configuration. A step is known by its index in `steps`.

    absent: the ensemble's optional inputs, each with None.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.name: str = config.name
        self.absent: dict[str, Tensor | None] = {tensor.name: None for tensor in config.input if tensor.optional}
        steps = list(config.ensemble_scheduling.step)
        read = {value for step in steps for value in step.input_map.values()}
        retries = step_retries(config)
        self.steps = [
            EnsembleStep(
                model_name=step.model_name,
                model_version="" if step.model_version < 1 else str(step.model_version),
                inputs=tuple(step.input_map.items()),
                outputs=tuple(step.output_map.items()),
                requested=tuple(step.output_map),
                reads=frozenset(step.input_map.values()),
                feeds_steps=not read.isdisjoint(step.output_map.values()),
                retry=retries.get(step.model_name),
            )
            for step in steps
        ]
        self._reading: defaultdict[str, list[int]] = defaultdict(list)
        for index, each in enumerate(self.steps):
            for tensor in each.reads:
                self._reading[tensor].append(index)
        self._after: dict[int, list[int]] = {}
        self._outputs: list[str] = [output.name for output in config.output]
        self._makers = {tensor: index for index, step in enumerate(self.steps) for _, tensor in step.outputs}
        self._plan_of_all = self._plan(self._outputs)
        self._batched = config.max_batch_size > 0
        self._ranks = {
            output.name: len(output.reshape.shape if output.HasField("reshape") else output.dims)
            for output in config.output
        }

    def plan(self, requested: Sequence[str]) -> StepPlan:
        """Return the plan for a request of these outputs; an empty list means all."""
        if not requested:
            return self._plan_of_all
        outputs = [name for name in self._outputs if name in requested]
        return self._plan_of_all if len(outputs) == len(self._outputs) else self._plan(outputs)

    def _plan(self, outputs: list[str]) -> StepPlan:
        steps = self._steps_for(outputs)
        readers = Counter(outputs)
        for index in steps:
            readers.update(self.steps[index].reads)
        return StepPlan(outputs, steps, dict(readers))

    def _steps_for(self, outputs: Sequence[str]) -> list[int]:
        """Return the steps that these outputs depend on; others do not run, as in Triton."""
        if len(outputs) == len(self._outputs):
            return list(range(len(self.steps)))
        needed: set[int] = set()
        tensors = list(outputs)
        while tensors:
            maker = self._makers.get(tensors.pop())
            if maker is not None and maker not in needed:
                needed.add(maker)
                tensors += self.steps[maker].reads
        return sorted(needed)

    def after(self, index: int) -> list[int]:
        """Return the steps that depend on a step, in order."""
        found = self._after.get(index)
        if found is None:
            found = self._after[index] = sorted(self._depending_on(index))
        return found

    def _depending_on(self, index: int) -> set[int]:
        found: set[int] = set()
        ahead = [index]
        while ahead:
            for _, tensor in self.steps[ahead.pop()].outputs:
                more = [reader for reader in self._reading.get(tensor, ()) if reader not in found]
                found.update(more)
                ahead += more
        return found

    def with_own_ranks(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the ensemble's outputs with, or without, the batch dimension that its configuration gives them."""
        return {name: with_rank(tensor, self._ranks[name], self._batched) for name, tensor in outputs.items()}


class StepLimits:
    """Bounds the requests at each step at once: `max_inflight_requests` of the configuration, 0 for any number."""

    def __init__(self) -> None:
        self._limit = 0
        self._inflight: Counter[int] = Counter()
        self._waiters: dict[int, Waiters[Resume]] = {}

    def configure(self, limit: int) -> None:
        """Take a new limit, and let the requests go on that have room now."""
        self._limit = limit
        for waiters in list(self._waiters.values()):
            waiters.ask()

    def enter(self, index: int, resume: Resume) -> bool:
        """Return whether one more request may go to a step, and count it. If it may not, `resume(index)` is called when there
        may be room, and the request enters again; `withdraw` prevents that."""
        if not self._limit or self._inflight[index] < self._limit:
            self._inflight[index] += 1
            return True
        if index not in self._waiters:
            self._waiters[index] = Waiters(partial(self._has_room, index))
        self._waiters[index].wait(resume, partial(resume, index))
        return False

    def withdraw(self, index: int, resume: Resume) -> None:
        """Forget a request that waits for a step."""
        self._waiters[index].withdraw(resume)

    def leave(self, index: int) -> None:
        """Note that a request has left a step, and let the one that has waited longest go on."""
        self._inflight[index] -= 1
        if index in self._waiters:
            self._waiters[index].ask()

    def _has_room(self, index: int, resume: Resume) -> bool:
        return not self._limit or self._inflight[index] < self._limit

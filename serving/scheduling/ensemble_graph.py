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

# Called with the index of a step that can accept another request.
Resume = Callable[[int], None]


class EnsembleStep(NamedTuple):
    """One step, read once from its configuration, because reading a protobuf map takes longer than running some steps.

    inputs, outputs: pairs of a name in the step's model and a tensor of the ensemble. requested: the model's names of the
    outputs. reads: the ensemble's tensors that the step reads. feeds_steps: another step reads its outputs, so they may stay
    on a GPU. retry: the number of retries and the timeout of each try, or None without retries.
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
    """The work for one request: its outputs, in order, the steps that produce them, and how many readers each tensor has. The
    answer counts as a reader."""

    outputs: list[str]
    steps: list[int]
    readers: dict[str, int]


class EnsembleGraph:
    """The graph of an ensemble, built once from its configuration. The index of a step in `steps` identifies the step.

    absent: maps each optional input of the ensemble to None.
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
        """Return the plan for a request with these requested outputs; an empty list means all outputs."""
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
        """Return the steps that these outputs depend on. As in Triton, other steps do not run."""
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
        """Return the ensemble's outputs with the batch dimension added or removed as its configuration declares."""
        return {name: with_rank(tensor, self._ranks[name], self._batched) for name, tensor in outputs.items()}


class StepLimits:
    """Limits the concurrent requests of each step to the configuration's `max_inflight_requests`; 0 means any number."""

    def __init__(self) -> None:
        self._limit = 0
        self._inflight: Counter[int] = Counter()
        self._waiters: dict[int, Waiters[Resume]] = {}

    def configure(self, limit: int) -> None:
        """Set a new limit, and resume the requests that have room now."""
        self._limit = limit
        for waiters in list(self._waiters.values()):
            waiters.ask()

    def enter(self, index: int, resume: Resume) -> bool:
        """Return whether one more request may enter a step, and count it. If the request must wait, `resume(index)` is called
        when there may be room, and the request must call `enter` again. `withdraw` cancels this call."""
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
        """Note that a request has left a step, and resume the request that has waited longest."""
        self._inflight[index] -= 1
        if index in self._waiters:
            self._waiters[index].ask()

    def _has_room(self, index: int, resume: Resume) -> bool:
        return not self._limit or self._inflight[index] < self._limit

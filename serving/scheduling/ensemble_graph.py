"""The steps of an ensemble and the tensors between them, as its configuration describes them.

Source: Triton, docs/user_guide/ensemble_models.md.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

from serving.core.datatypes import Tensor
from serving.core.tensor_check import with_rank


class EnsembleGraph:
    """Built once from a configuration. A step is known by its index in `steps`.

    outputs: the ensemble's, in order. absent: its optional inputs, each with None. after: for each step those that depend on
    it. feeds_steps: for each step whether another one reads from it; what no step reads goes to the client.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.name: str = config.name
        self.steps: list[ModelEnsembling.Step] = list(config.ensemble_scheduling.step)
        self.outputs: list[str] = [output.name for output in config.output]
        self.absent: dict[str, Tensor | None] = {tensor.name: None for tensor in config.input if tensor.optional}
        read = {value for step in self.steps for value in step.input_map.values()}
        self.feeds_steps = [not read.isdisjoint(step.output_map.values()) for step in self.steps]
        self.after = [self._steps_after(index) for index in range(len(self.steps))]
        self._makers = {value: index for index, step in enumerate(self.steps) for value in step.output_map.values()}
        self._batched = config.max_batch_size > 0
        self._ranks = {
            output.name: len(output.reshape.shape if output.HasField("reshape") else output.dims)
            for output in config.output
        }

    def steps_for(self, outputs: Sequence[str]) -> list[int]:
        """Return the steps that these outputs depend on; others do not run, as in Triton."""
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

    def with_own_ranks(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the ensemble's outputs with, or without, the batch dimension that its configuration gives them."""
        return {name: with_rank(tensor, self._ranks[name], self._batched) for name, tensor in outputs.items()}

    def _steps_after(self, index: int) -> list[int]:
        tensors = set(self.steps[index].output_map.values())
        found: list[int] = []
        while more := [
            number
            for number, step in enumerate(self.steps)
            if number not in found and tensors & set(step.input_map.values())
        ]:
            found += more
            tensors.update(value for number in more for value in self.steps[number].output_map.values())
        return found


class StepLimits:
    """How many requests may be at each step at once: `max_inflight_requests` of the configuration, 0 for any number."""

    def __init__(self) -> None:
        self.limit = 0
        self._inflight: Counter[int] = Counter()
        self._waiting: defaultdict[int, deque[Callable[[int], bool]]] = defaultdict(deque)
        self._resuming: set[int] = set()

    def enter(self, index: int, resume: Callable[[int], bool]) -> bool:
        """Return whether one more request may be sent to a step. Where not, `resume(index)` is called when one may: it returns
        whether the request still wants to."""
        if not self.limit or self._inflight[index] < self.limit:
            self._inflight[index] += 1
            return True
        self._waiting[index].append(resume)
        return False

    def leave(self, index: int) -> None:
        """A request has left a step: whoever has waited for it longest may go on."""
        self._inflight[index] -= 1
        waiting = self._waiting[index]
        if index in self._resuming:  # a resumed request failed at once: the loop below is under way
            return
        self._resuming.add(index)
        while waiting and not (self.limit and self._inflight[index] >= self.limit):
            self._inflight[index] += 1
            if not waiting.popleft()(index):
                self._inflight[index] -= 1
        self._resuming.discard(index)

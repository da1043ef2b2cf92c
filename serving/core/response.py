"""What a model answers: a response with its tensors."""

from dataclasses import dataclass, field

from serving.core.datatypes import Tensor
from serving.core.errors import ServingError
from serving.core.output_target import MemoryRange
from serving.core.request import Parameters


@dataclass(slots=True)
class InferenceResponse:
    """One response of a model.

    outputs: name -> tensor with the batch dimension: only those that were asked for, in the order of the configuration. A
        tensor may be a view of a whole batch's output: serialise it before the loop runs on, and never write to it.
    size: bytes that the response counts against the ResponseFlow of its request; 0 for one that is not counted.
    in_shared_memory: where outputs lie that were written into shared memory: only dtype and shape of their tensors go out.
    """

    model_name: str
    model_version: int
    id: str
    outputs: dict[str, Tensor]
    parameters: Parameters = field(default_factory=dict)
    size: int = 0
    in_shared_memory: dict[str, MemoryRange] | None = None


# None: a decoupled model has ended its stream without another response.
Answer = InferenceResponse | ServingError | None

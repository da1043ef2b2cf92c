"""A model's response with its output tensors."""

from serving.core.datatypes import Tensor
from serving.core.errors import ServingError
from serving.core.output_target import MemoryRange
from serving.core.request import Parameters


class InferenceResponse:
    """One response of a model.

    outputs: name -> tensor with the batch dimension; only the requested outputs, in the order of the configuration. They
      may be views of a whole batch's output: serialise them before the loop's next callback, and never write to them.
    size: bytes that the ResponseFlow of its request counts for this response; 0 if it is not counted.
    in_shared_memory: the memory ranges of outputs in shared memory; clients get only dtype and shape of these outputs.
    """

    __slots__ = ("id", "in_shared_memory", "model_name", "model_version", "outputs", "parameters", "size")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        id: str,
        outputs: dict[str, Tensor],
        parameters: Parameters | None = None,
        size: int = 0,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.parameters: Parameters = {} if parameters is None else parameters
        self.size = size
        self.in_shared_memory: dict[str, MemoryRange] | None = None

    def __repr__(self) -> str:
        return f"InferenceResponse({self.model_name!r}, {self.model_version}, {self.outputs!r}, {self.parameters!r})"


# None: a decoupled model has ended its stream without another response.
Answer = InferenceResponse | ServingError | None

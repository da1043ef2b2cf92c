"""An output that a client requests as classes or in shared memory. `serving.extensions.tensor_parameters` applies it.

Source: Triton, docs/protocol/extension_classification.md and extension_shared_memory.md.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

# Bytes [n] of a shared memory region: a numpy array on the host, a torch tensor of uint8 on a GPU.
RegionMemory: TypeAlias = "NDArray[np.uint8] | torch.Tensor"


class MemoryRange(NamedTuple):
    """`byte_size` bytes of a registered shared memory region, beginning at `offset`."""

    region: str
    offset: int
    byte_size: int


class OutputRule(NamedTuple):
    """The checked parameters of a requested output. Requests with equal parameters share one OutputRule.

    classes: how many of the highest values to return as classes; 0 for the tensor itself.
    memory: the range of shared memory to write the tensor to.
    """

    classes: int = 0
    memory: MemoryRange | None = None


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """A rule, and the shared memory that the rule names.

    memory: uint8 [byte_size], on the host or on a GPU. It stays mapped as long as the request lives.
    exclusive: no input of the request uses the same memory, so the model may write to it while it runs.
    """

    rule: OutputRule
    memory: "RegionMemory | None" = field(default=None, repr=False)
    exclusive: bool = False

"""A client's wish to get an output as classes or in shared memory. `serving.extensions.tensor_parameters` fulfils it.

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
    """`byte_size` bytes of a registered shared memory region, from `offset` on."""

    region: str
    offset: int
    byte_size: int


class OutputRule(NamedTuple):
    """The parameters of a requested output, checked. Requests with equal parameters share one.

    classes: how many of the highest values to return as classes; 0 for the tensor itself.
    memory: where in shared memory to write the tensor.
    """

    classes: int = 0
    memory: MemoryRange | None = None


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """A rule with the shared memory that it names.

    memory: uint8 [byte_size], on the host or on a GPU; it stays mapped as long as the request lives.
    exclusive: no input of the request lies in the same memory, so that the model may write to it while it runs.
    """

    rule: OutputRule
    memory: "RegionMemory | None" = field(default=None, repr=False)
    exclusive: bool = False

"""One inference request, as a frontend has decoded it. An InFlightRequest carries it through the server."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from serving.core.datatypes import Tensor
from serving.core.output_target import OutputTarget

ParameterValue = str | int | float | bool
Parameters = dict[str, ParameterValue]

NO_PARAMETERS: Mapping[str, ParameterValue] = MappingProxyType({})
NO_TARGETS: Mapping[str, OutputTarget] = MappingProxyType({})


class SequencePosition(NamedTuple):
    """The position of a request in a sequence: its correlation ID (0 or "" outside of sequences), and whether the request is
    first or last. Source: Triton, docs/protocol/extension_sequence.md."""

    id: int | str = 0
    start: bool = False
    end: bool = False

    def as_parameters(self) -> Parameters:
        return {"sequence_id": self.id, "sequence_start": self.start, "sequence_end": self.end}


NO_SEQUENCE = SequencePosition()


class InferenceRequest:
    """One inference on one model, as its sender made it. The server never changes it.

    inputs: name -> tensor in native byte order, with the batch dimension; tensors may be read-only views of the received body.
    model_version: "" or "-1" if the server may choose.
    requested_outputs: the names of the wanted outputs; empty for all.
    priority: 1 is the highest; 0 means the model's default. timeout_us: the client's limit on the queue time; 0 for none.
    output_targets: the outputs to classify, or to write to shared memory, instead of returning their tensors.
    device_outputs: the sender accepts outputs that stay on a GPU.
    empty_final_response: the client wants a message at the end of a stream even if it carries no response.
    from_ensemble: the request is a step of an ensemble, so its tensors may lack or have a superfluous batch dimension of 1.
    """

    __slots__ = (
        "device_outputs",
        "empty_final_response",
        "from_ensemble",
        "id",
        "inputs",
        "model_name",
        "model_version",
        "output_targets",
        "parameters",
        "priority",
        "requested_outputs",
        "sequence",
        "timeout_us",
    )

    def __init__(
        self,
        model_name: str,
        inputs: dict[str, Tensor],
        model_version: str = "",
        id: str = "",
        requested_outputs: tuple[str, ...] = (),
        parameters: Mapping[str, ParameterValue] = NO_PARAMETERS,
        priority: int = 0,
        timeout_us: int = 0,
        sequence: SequencePosition = NO_SEQUENCE,
        output_targets: Mapping[str, OutputTarget] = NO_TARGETS,
        device_outputs: bool = False,
        empty_final_response: bool = False,
        from_ensemble: bool = False,
    ) -> None:
        self.model_name = model_name
        self.inputs = inputs
        self.model_version = model_version
        self.id = id
        self.requested_outputs = requested_outputs
        self.parameters = parameters
        self.priority = priority
        self.timeout_us = timeout_us
        self.sequence = sequence
        self.output_targets = output_targets
        self.device_outputs = device_outputs
        self.empty_final_response = empty_final_response
        self.from_ensemble = from_ensemble

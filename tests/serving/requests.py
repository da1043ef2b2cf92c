"""Requests as frontends make them, from the names that the protocol gives to their parts."""

from collections.abc import Callable
from typing import Any

from serving.core.in_flight import CallbackResponder, InFlightRequest, Observer
from serving.core.request import InferenceRequest, SequencePosition
from serving.core.response_flow import ResponseFlow


def in_flight(
    model: str,
    inputs: dict[str, Any],
    on_response: Callable[[Any, bool], object] = lambda answer, final: None,
    *,
    batch_size: int = 1,
    requested: tuple[str, ...] = (),
    sequence_id: int | str = 0,
    sequence_start: bool = False,
    sequence_end: bool = False,
    flow: ResponseFlow | None = None,
    observers: tuple[Observer, ...] = (),
    **fields: Any,
) -> InFlightRequest:
    """A request on its way; `fields` are those of InferenceRequest. `batch_size` is of one that no model checks."""
    sequence = SequencePosition(sequence_id, sequence_start, sequence_end)
    asked = InferenceRequest(model, inputs, requested_outputs=requested, sequence=sequence, **fields)
    request = InFlightRequest(asked, CallbackResponder(on_response, flow), observers)
    request.batch_size = batch_size
    return request

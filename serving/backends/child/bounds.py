"""The time limits of a model's process, for a batch and for its start, and the names of the settings that set them."""

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.config.own_parameters import EXECUTION_TIMEOUT


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits in seconds, or None for no limit.

    `execution_named` and `start_named` name the setting behind each limit, for error messages.
    """

    execution_s: float | None = None
    execution_named: str = SLIPWAY_PREFIX + EXECUTION_TIMEOUT
    start_s: float | None = None
    start_named: str = ""


def configured_bounds(config: ModelConfig) -> Bounds:
    """Return the limits that `slipway.execution_timeout_s` of a validated configuration sets."""
    value = get_parameter(config, EXECUTION_TIMEOUT)
    return Bounds(float(value) if isinstance(value, int | float) else None)

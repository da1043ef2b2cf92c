"""Time limits for a model's process, for a batch and for its start, with the names of the settings that they come from."""

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.config.own_parameters import EXECUTION_TIMEOUT


@dataclass(frozen=True, slots=True)
class Bounds:
    """In seconds; None without a bound. The names of the settings are for messages."""

    execution_s: float | None = None
    execution_named: str = SLIPWAY_PREFIX + EXECUTION_TIMEOUT
    start_s: float | None = None
    start_named: str = ""


def configured_bounds(config: ModelConfig) -> Bounds:
    """Return the bounds that `slipway.execution_timeout_s` sets. The configuration has been validated."""
    value = get_parameter(config, EXECUTION_TIMEOUT)
    return Bounds(float(value) if isinstance(value, int | float) else None)

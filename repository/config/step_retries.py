"""`slipway.step_retries`: how often an ensemble repeats a step that fails, and how long one attempt may take.

`{"<model of a step>": {"retries": 3, "timeout_ms": 5000}}`. Only the failed step runs again: the results of earlier steps are
kept. A step that is not named runs once, without a timeout.
"""

from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter
from repository.core.json_types import Json

PARAMETER = "step_retries"
MOST = 2**31 - 1
_LEAST = {"retries": 0, "timeout_ms": 1}


class StepRetry(NamedTuple):
    """retries: the number of attempts after the first. timeout_ms: the timeout of each attempt; 0 for no timeout."""

    retries: int
    timeout_ms: int


def step_retries(config: ModelConfig) -> dict[str, StepRetry]:
    """Return the retries of a validated configuration, by the names of the steps' models."""
    given = get_parameter(config, PARAMETER)
    if not isinstance(given, dict):
        return {}
    return {name: StepRetry(_number(said, "retries"), _number(said, "timeout_ms")) for name, said in given.items()}


def _number(said: Json, key: str) -> int:
    value = said.get(key) if isinstance(said, dict) else None
    return value if isinstance(value, int) else 0


def problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in the parameter's value; "" if there is none."""
    if not isinstance(value, dict):
        return f'expected an object {{"<model of a step>": {{"retries": 1, "timeout_ms": 1000}}}}, not {value!r}'
    models = {step.model_name for step in config.ensemble_scheduling.step}
    for name, said in value.items():
        if name not in models:
            return f"no step of the ensemble has model '{name}'"
        if not isinstance(said, dict) or not said.keys() <= _LEAST.keys():
            return f"expected 'retries' and 'timeout_ms' for '{name}', not {said!r}"
        for key, number in said.items():
            if isinstance(number, bool) or not isinstance(number, int) or not _LEAST[key] <= number <= MOST:
                return f"expected {key} of '{name}' as a whole number from {_LEAST[key]}, not {number!r}"
    return ""

"""`slipway.residency`: when the weights of a model are in memory.

{"mode": "pinned"}                          as long as the model is loaded; the default
{"mode": "on_demand", "idle_seconds": 300}  from the first request until no request arrived for `idle_seconds`
{"mode": "evictable"}                       until another model needs the memory, where a memory budget limits both
"""

from typing import NamedTuple, TypedDict, cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import get_parameter, is_ensemble
from repository.core.json_types import Json

PARAMETER = "residency"
PINNED, ON_DEMAND, EVICTABLE = MODES = ("pinned", "on_demand", "evictable")


class Residency(NamedTuple):
    """See the module's docstring."""

    mode: str = PINNED
    idle_seconds: float = 300.0


class _Fields(TypedDict, total=False):
    """The value of the parameter, after `problem` has found no mistake in it."""

    mode: str
    idle_seconds: float


ALWAYS = Residency()


def residency_of(config: ModelConfig) -> Residency:
    """Return the residency of a validated configuration. An ensemble has no residency: the models of its steps have one."""
    value = get_parameter(config, PARAMETER)
    return ALWAYS if value is None or is_ensemble(config) else Residency(**cast(_Fields, value))


def problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in the parameter's value; "" if there is none."""
    if not isinstance(value, dict):
        return 'expected an object such as {"mode": "on_demand", "idle_seconds": 300}'
    unknown = sorted(value.keys() - {"mode", "idle_seconds"})
    if unknown:
        return f"expected 'mode' and 'idle_seconds', not '{unknown[0]}'"
    if value.get("mode") not in MODES:
        return f"expected a 'mode' of {', '.join(MODES)}, not {value.get('mode')!r}"
    idle = value.get("idle_seconds", 1)
    if isinstance(idle, bool) or not isinstance(idle, int | float) or not 0 < idle < 1e9:
        return f"expected 'idle_seconds' to be a number over 0, not {idle!r}"
    return ""

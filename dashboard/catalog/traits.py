"""What a configuration says of a model that changes how people use it."""

from dataclasses import dataclass
from typing import Any

from repository.config import model_config
from repository.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Traits:
    """decoupled: one request, any number of responses. sequence: requests belong together. caches: by the response cache.

    residency: when its weights are in memory, in words; "" for always.
    """

    decoupled: bool = False
    sequence: bool = False
    caches: bool = False
    residency: str = ""


def traits_of(text: str) -> Traits:
    """A text with mistakes has none: the server goes on with what it has."""
    try:
        config = model_config.parse(text)
        residency = model_config.get_parameter(config, "residency")
    except InvalidConfig:
        return Traits()
    return Traits(
        decoupled=config.model_transaction_policy.decoupled,
        sequence=config.HasField("sequence_batching"),
        caches=config.response_cache.enable,
        residency="" if model_config.is_ensemble(config) else _in_words(residency),
    )


def _in_words(residency: Any) -> str:
    value = residency if isinstance(residency, dict) else {}
    if value.get("mode") == "on_demand":
        return f"on demand, let go after {value.get('idle_seconds', 300):g} s"
    return "while there is room" if value.get("mode") == "evictable" else ""

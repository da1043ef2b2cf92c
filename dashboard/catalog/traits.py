"""What a configuration says of how a model is used: the traits that pages show."""

from dataclasses import dataclass

from repository.config import model_config
from repository.config.document import Document
from repository.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Traits:
    """How a model is used.

    decoupled: one request may have any number of responses. sequence: requests belong together by their correlation ID.
    caches: the response cache is asked. residency: when its weights are in memory, in words; "" for always.
    """

    decoupled: bool = False
    sequence: bool = False
    caches: bool = False
    residency: str = ""


def traits_of(document: Document, streams: bool = False) -> Traits:
    """Return what a configuration says; no traits for a text with mistakes, which no server loads.

    streams: whether it is of an archive that answers in several parts, which decides where it says nothing.
    """
    try:
        config = document.message
        residency = model_config.get_parameter(config, "residency")
    except InvalidConfig:
        return Traits()
    return Traits(
        decoupled=config.model_transaction_policy.decoupled
        or (streams and not config.HasField("model_transaction_policy")),
        sequence=config.HasField("sequence_batching"),
        caches=config.response_cache.enable,
        residency="" if model_config.is_ensemble(config) else _in_words(residency),
    )


def _in_words(residency: object) -> str:
    value = residency if isinstance(residency, dict) else {}
    if value.get("mode") == "on_demand":
        return f"on demand, let go after {value.get('idle_seconds', 300):g} s"
    return "while there is room" if value.get("mode") == "evictable" else ""

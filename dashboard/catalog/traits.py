"""The traits of a model that pages show, from its configuration."""

from dataclasses import dataclass

from repository.config import model_config
from repository.config.document import Document
from repository.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class Traits:
    """The traits of a model.

    decoupled: one request may have any number of responses. sequence: requests belong together by their correlation ID.
    caches: the response cache is used. residency: the time for which its weights are in memory, in words; "" for always.
    """

    decoupled: bool = False
    sequence: bool = False
    caches: bool = False
    residency: str = ""


def traits_of(document: Document, streams: bool = False) -> Traits:
    """Return the traits of a configuration; no traits if the text has mistakes, because no server loads it.

    streams: whether the model's archive streams its answers. Then the model is decoupled, unless the configuration sets this.
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
        return f"on demand, put to sleep after {value.get('idle_seconds', 300):g} s"
    return "while there is room" if value.get("mode") == "evictable" else ""

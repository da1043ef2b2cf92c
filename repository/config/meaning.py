"""What clients meet of a configuration: which versions answer them, by which names, and how; not how its text is written."""

import json

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, parse
from repository.config.release import ALIASES, DEFAULT_ALIAS, aliases_of
from repository.config.release_stamp import unstamped, without_stamp
from repository.core.errors import InvalidConfig


def same_meaning(one: str, other: str, versions: list[int]) -> bool:
    """Whether clients meet the same of two texts that both serve these versions.

    Comments, the number of the release, and the words of the version policy are nothing to them, and neither is a `default`
    that means the version which answers anyhow. Of a text with mistakes nothing is known but itself.
    """
    if one == other:
        return True
    try:
        return _meaning(parse(one), versions) == _meaning(parse(other), versions)
    except (InvalidConfig, ValueError, TypeError, AttributeError, RecursionError):
        return unstamped(one).rstrip("\n") == unstamped(other).rstrip("\n")


def _meaning(config: ModelConfig, versions: list[int]) -> tuple[ModelConfig, int, dict[str, object]]:
    """Return a configuration in one form, which version answers by default, and its own parameters as values."""
    plain = without_stamp(config)
    plain.ClearField("version_policy")
    plain.ClearField("name")  # the folder's in any case
    names = aliases_of(config)
    answers = names.get(DEFAULT_ALIAS, max(versions, default=0))
    own: dict[str, object] = {"aliases": {name: number for name, number in names.items() if name != DEFAULT_ALIAS}}
    for key in [key for key in plain.parameters if key.startswith(SLIPWAY_PREFIX)]:
        if key != SLIPWAY_PREFIX + ALIASES:
            own[key] = _value(plain.parameters[key].string_value)
        del plain.parameters[key]
    return plain, answers, own


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text

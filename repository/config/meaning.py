"""What clients meet of a configuration: which versions answer them, by which names, and how; not how its text is written."""

import json

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import version_settings
from repository.config.model_config import SLIPWAY_PREFIX, parse
from repository.config.release import ALIASES, DEFAULT_ALIAS, aliases_of
from repository.config.release_stamp import unstamped, without_stamp
from repository.core.errors import InvalidConfig


def same_meaning(one: str, other: str, versions: list[int]) -> bool:
    """Whether clients meet the same of two texts that both serve these versions.

    Comments, the number of the release, and the words of the version policy are nothing to them, and neither are a `default`
    that means the version which answers anyhow and the settings of versions that are not served. Of a text with mistakes
    nothing is known but itself.
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
    own: dict[str, object] = {
        "aliases": {name: number for name, number in names.items() if name != DEFAULT_ALIAS},
        "settings": {
            number: said for number, said in version_settings.settings_of(config).items() if number in versions
        },
    }
    for key in [key for key in plain.parameters if key.startswith(SLIPWAY_PREFIX)]:
        if key not in (SLIPWAY_PREFIX + ALIASES, version_settings.KEY):
            own[key] = _value(plain.parameters[key].string_value)
        del plain.parameters[key]
    return plain, answers, own


def _value(text: str) -> str:
    """Return JSON in one form. Not as values: to Python, true is 1."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except ValueError:
        return text


def _number(text: str) -> float:
    """Return a number that is written with a point or an exponent as it would be without: 1.0 is 1."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number

"""The meaning of a configuration to clients: the versions that answer, their names and their settings, but not its text."""

import json

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import version_settings
from repository.config.model_config import SLIPWAY_PREFIX
from repository.config.release import ALIASES, DEFAULT_ALIAS, aliases_of

# A normalized configuration, the version that answers by default, and the values of Slipway's own parameters.
Meaning = tuple[ModelConfig, int, dict[str, object]]


def meaning(config: ModelConfig, versions: list[int]) -> Meaning:
    """Return the meaning of a configuration that serves these versions.

    Comments, the form of the version policy, and settings of versions that are not served do not count. An alias `default` does
    not count if its version would answer without the alias.
    """
    plain = ModelConfig()
    plain.CopyFrom(config)
    plain.ClearField("version_policy")
    plain.ClearField("name")  # the name is always the name of the folder
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
    """Return JSON in one form, as text because true equals 1 in Python."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except ValueError:
        return text


def _number(text: str) -> float:
    """Return a whole number without its point or exponent: 1.0 becomes 1."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number

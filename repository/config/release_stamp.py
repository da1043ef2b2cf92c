"""The number of a release in a text of config.pbtxt: `slipway.release`, by which a server says which release it serves.

The dashboard writes it; to a person it is no part of the text. So a text is compared, shown and edited without its stamp.
"""

import re

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import edit as config_edit
from repository.config.model_config import SLIPWAY_PREFIX, parse
from repository.config.release import RELEASE, release_of
from repository.core.errors import InvalidConfig

KEY = SLIPWAY_PREFIX + RELEASE

_LINE = f'parameters {{ key: "{KEY}" value {{ string_value: "%d" }} }}\n'
_WRITTEN = re.compile(
    rf'^parameters \{{ key: "{re.escape(KEY)}" value \{{ string_value: "\d+" \}} \}}\n?', re.MULTILINE
)


def stamped(text: str, number: int) -> str:
    """Return a text with the number of its release, as its last line."""
    plain = unstamped(text)
    ended = plain if not plain or plain.endswith("\n") else plain + "\n"
    return ended + _LINE % number


def stamp_of(text: str) -> int | None:
    """Return the number of the release in a text; None where it says none, or is no configuration."""
    try:
        return release_of(parse(text))
    except InvalidConfig:
        return None


def unstamped(text: str) -> str:
    """Return a text without the number of its release, wherever a person has put it."""
    plain = _WRITTEN.sub("", text)
    if KEY not in plain:
        return plain
    try:
        config = parse(plain)
        if KEY not in config.parameters:
            return plain
        return config_edit.apply(plain, without_stamp(config))
    except InvalidConfig:  # no server loads it, and what is wrong with it is said of the text as it is
        return plain


def without_stamp(config: ModelConfig) -> ModelConfig:
    """Return a copy of a configuration without the number of its release."""
    plain = ModelConfig()
    plain.CopyFrom(config)
    if KEY in plain.parameters:
        del plain.parameters[KEY]
    return plain


def same_text(one: str, other: str) -> bool:
    """Whether two texts differ in nothing but their stamps, and the end of the last line."""
    return one == other or unstamped(one).rstrip("\n") == unstamped(other).rstrip("\n")

"""`slipway.release` and `slipway.aliases`: the release that a configuration belongs to, and names of versions.

7                               the number of the release, from 1
{"champion": 3, "default": 3}   names that clients may use in place of a version's number: in paths, in gRPC's model_version

A request that names no version goes to the version that `default` names, or to the highest version, as in Triton. Both
parameters belong to the whole model: no version's overlay may set them, and a serving model takes them without a reload.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import cast

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.core.json_types import Json

RELEASE = "release"
ALIASES = "aliases"
DEFAULT_ALIAS = "default"
MAX_ALIASES = 100
ALIAS_RULE = "1 to 64 characters of a-z, 0-9, '_', '.' and '-', the first of them a letter"

_ALIAS = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_MAX_NUMBER = 2**63 - 1


def release_of(config: ModelConfig) -> int | None:
    """Return the number of the release of a validated configuration, or None if the configuration has no such number."""
    value = get_parameter(config, RELEASE)
    return cast(int, value) if _is_number(value) else None


def set_release(config: ModelConfig, number: int) -> None:
    config.parameters[SLIPWAY_PREFIX + RELEASE].string_value = str(number)


def aliases_of(config: ModelConfig) -> dict[str, int]:
    """Return the aliases of a validated configuration: name -> version."""
    return cast(dict[str, int], get_parameter(config, ALIASES) or {})


def set_aliases(config: ModelConfig, aliases: Mapping[str, int]) -> None:
    """Write the names, sorted; without names, remove the parameter."""
    key = SLIPWAY_PREFIX + ALIASES
    if aliases:
        config.parameters[key].string_value = json.dumps(dict(sorted(aliases.items())))
    elif key in config.parameters:
        del config.parameters[key]


def is_alias(text: str) -> bool:
    """Return whether a text has the form of an alias, which no number has."""
    return _ALIAS.fullmatch(text) is not None


def release_problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in the value of `slipway.release`; "" if there is none."""
    return "" if _is_number(value) else f"expected the number of a release, from 1 on, not {value!r}"


def aliases_problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in the value of `slipway.aliases` alone; "" if there is none."""
    if not isinstance(value, dict):
        return 'expected an object such as {"champion": 3, "default": 3}'
    if len(value) > MAX_ALIASES:
        return f"expected at most {MAX_ALIASES} names, not {len(value)}"
    for name, version in value.items():
        if not is_alias(name):
            return f"'{name[:80]}' cannot name a version: expected {ALIAS_RULE}"
        if not _is_number(version):
            return f"expected '{name}' to name a version by its number, from 1 on, not {version!r}"
    return ""


def unserved_alias(config: ModelConfig, versions: Iterable[int]) -> str:
    """Return a message about an alias of a version that does not serve; "" if all aliases name serving versions."""
    served = sorted(versions)
    for name, version in sorted(aliases_of(config).items()):
        if version not in served:
            there = ", ".join(map(str, served)) or "none"
            return (
                f"alias '{name}' names version {version}, which the version policy does not serve (it serves {there}): "
                "move the alias, or have that version served"
            )
    return ""


def _is_number(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_NUMBER

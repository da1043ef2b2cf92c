"""`slipway.release` and `slipway.aliases`: which release a configuration belongs to, and names of versions.

7                               the number of the release, from 1 on
{"champion": 3, "default": 3}   names that stand wherever a version's number may: in paths, in gRPC's model_version, ...

A request that names no version goes to the one that `default` means; without it to the highest, as in Triton. Both belong to
the whole model, so that no version's overlay may set them, and a model that serves takes them in place.
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
    """Return the number of the release of a validated configuration; None where it has none."""
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
    """Whether a text has the form of an alias; no number has it."""
    return _ALIAS.fullmatch(text) is not None


def release_problem(value: Json, config: ModelConfig) -> str:
    """Return what is wrong with `slipway.release`, "" for nothing."""
    return "" if _is_number(value) else f"expected the number of a release, from 1 on, not {value!r}"


def aliases_problem(value: Json, config: ModelConfig) -> str:
    """Return what is wrong with `slipway.aliases` in itself, "" for nothing."""
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
    """Return what is wrong where an alias names a version other than those that serve, "" for nothing."""
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

"""`slipway.version_settings`: settings of single versions, which replace the settings of the model.

{"2": {"max_batch_size": 8, "instance_group": [{"count": 2}]}}

Each value is a part of a ModelConfig in protobuf's JSON. It overrides the settings in the `slipway.pbtxt` of that version. The
parameter is part of the model's configuration, so that each release has its own value, and a load request carries it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import model_config
from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.core.errors import InvalidConfig, Problem
from repository.core.json_types import Json
from repository.core.layout import OVERLAY_FILE, parse_version

PARAMETER = model_config.OWN_SETTINGS
KEY = SLIPWAY_PREFIX + PARAMETER
_EXAMPLE = '{"2": {"max_batch_size": 8}}'


def settings_of(config: ModelConfig) -> dict[int, ModelConfig]:
    """Return the settings by version. Raises InvalidConfig if the parameter is invalid."""
    value = get_parameter(config, PARAMETER)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(f"expected an object such as {_EXAMPLE}")
    most = model_config.MAX_VALUES // model_config.values_of(config)
    if len(value) > most:
        raise _invalid(
            f"expected settings of at most {most} versions, because each also has the rest of the configuration"
        )
    found = {}
    for version, said in value.items():
        number = parse_version(version)
        if number is None:
            raise _invalid(f"expected the number of a version, from 1 on, not '{version[:80]}'")
        try:
            found[number] = model_config.parse_json(json.dumps(said))
            model_config.merge_overlay(ModelConfig(), found[number])
        except InvalidConfig as error:
            raise _invalid(f"version {number}: {error.message}") from None
    return found


def set_settings(config: ModelConfig, settings: Mapping[int, ModelConfig]) -> None:
    """Write the settings, sorted by version; without settings, remove the parameter."""
    rows = {
        str(number): json_format.MessageToDict(said, preserving_proto_field_name=True)
        for number, said in sorted(settings.items())
        if said != ModelConfig()
    }
    if rows:
        config.parameters[KEY].string_value = json.dumps(rows)
    elif KEY in config.parameters:
        del config.parameters[KEY]


def for_version(config: ModelConfig, version: int | None) -> ModelConfig:
    """Return the configuration of a version, or without version settings for None. Raises InvalidConfig as `settings_of`."""
    if KEY not in config.parameters:
        return config
    return _laid_over(config, settings_of(config).get(version) if version is not None else None)


def as_served(config: ModelConfig, number: int, folder: Path) -> ModelConfig:
    """Return the configuration of a version: the model's, with slipway.pbtxt of its folder and then its settings merged in.

    Raises InvalidConfig if slipway.pbtxt or the settings cannot be read.
    """
    overlay = folder / OVERLAY_FILE
    if not os.path.lexists(overlay):
        return for_version(config, number)
    own = ModelConfig()
    own.CopyFrom(config)
    model_config.merge_overlay(own, model_config.parse_file(overlay))
    return for_version(own, number)


def _laid_over(config: ModelConfig, own: ModelConfig | None) -> ModelConfig:
    found = ModelConfig()
    found.CopyFrom(config)
    del found.parameters[KEY]
    if own is not None:
        model_config.merge_overlay(found, own)
    return found


def problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in the parameter's value alone; "" if there is none."""
    try:
        settings_of(config)
    except InvalidConfig as error:
        return error.message
    return ""


def of_versions(config: ModelConfig) -> dict[int, ModelConfig]:
    """Return the configuration of each version that has its own settings; {} if the parameter is invalid."""
    try:
        return {number: _laid_over(config, own) for number, own in settings_of(config).items()}
    except InvalidConfig:
        return {}


def at_version(number: int, found: Problem) -> Problem:
    """Return a problem of a version's configuration as a problem of the parameter."""
    where = f"{found.field}: " if found.field else ""
    return Problem(f'parameters["{KEY}"]', f"version {number}: {where}{found.message}")


def _invalid(message: str) -> InvalidConfig:
    return InvalidConfig(message, field=f'parameters["{KEY}"]')

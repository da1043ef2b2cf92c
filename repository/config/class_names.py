"""`slipway.class_names`: the names of an output's classes, by index, for outputs without a label file.

An example: {"probabilities": ["setosa", "versicolor", "virginica"]}. The server writes the names that it finds in a model file
into the configuration that it serves.
"""

import json
from collections.abc import Mapping, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.model_config import SLIPWAY_PREFIX, get_parameter
from repository.core.json_types import Json

PARAMETER = "class_names"
KEY = SLIPWAY_PREFIX + PARAMETER


def class_names(config: ModelConfig) -> dict[str, list[str]]:
    """Return the class names of a valid configuration, by output."""
    value = get_parameter(config, PARAMETER, {})
    if not isinstance(value, dict):
        return {}
    return {output: [str(name) for name in names] for output, names in value.items() if isinstance(names, list)}


def set_class_names(config: ModelConfig, names: Mapping[str, Sequence[str]]) -> None:
    """Write the class names of outputs; without names, remove the parameter."""
    named = {output: list(classes) for output, classes in names.items() if classes}
    if named:
        config.parameters[KEY].string_value = json.dumps(named, ensure_ascii=False)
    elif KEY in config.parameters:
        del config.parameters[KEY]


def problem(value: Json, config: ModelConfig) -> str:
    """Return the mistake in a value; "" if there is none."""
    if not isinstance(value, dict) or not all(_is_list_of_names(names) for names in value.values()):
        return 'expected an object of lists of names, such as {"probabilities": ["cat", "dog"]}'
    unknown = sorted(value.keys() - {output.name for output in config.output})
    if unknown and config.output:
        return f"'{unknown[0]}' is none of the outputs, which are {', '.join(output.name for output in config.output)}"
    return ""


def _is_list_of_names(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)

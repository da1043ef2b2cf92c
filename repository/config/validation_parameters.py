"""Rules about optimization and parameters: those that a backend reads as numbers or switches, and slipway's own."""

import difflib
import json
from collections.abc import Callable, Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import (
    class_names,
    inline_execution,
    release,
    residency,
    step_retries,
    text_generation,
    traffic,
    variable_batch,
    version_settings,
)
from repository.config.backends import KINDS
from repository.config.model_config import SLIPWAY_PREFIX, backend_of, get_parameter
from repository.core.errors import InvalidConfig, Problem
from repository.core.json_types import Json

_ACCELERATORS = {
    "gpu_execution_accelerator": ("tensorrt", "cuda", "auto_mixed_precision", "gpu_io"),
    "cpu_execution_accelerator": ("openvino",),
}

EXECUTION_TIMEOUT = "execution_timeout_s"
ISOLATION = "isolation"


def optimization(config: ModelConfig) -> Iterator[Problem]:
    accelerators = config.optimization.execution_accelerators
    for kind, known in _ACCELERATORS.items():
        for index, accelerator in enumerate(getattr(accelerators, kind)):
            if accelerator.name not in known:
                field = f"optimization.execution_accelerators.{kind}[{index}].name"
                yield Problem(field, f"expected one of {', '.join(known)}, not '{accelerator.name}'")
    level = config.optimization.graph.level
    if backend_of(config) == "onnxruntime" and level not in (-1, 0, 1, 2):
        yield Problem(
            "optimization.graph.level", f"expected -1 (basic), 0 (all), 1 (extended) or 2 (none), not {level}"
        )


def parameters(config: ModelConfig) -> Iterator[Problem]:
    kind = KINDS.get(backend_of(config))
    rules = kind.parameters if kind else {}
    for key in sorted(config.parameters):
        value = config.parameters[key].string_value
        if key.startswith(SLIPWAY_PREFIX):
            yield from _own(config, key)
        elif key in rules and not rules[key][0].fullmatch(value):
            yield Problem(f'parameters["{key}"]', f"{rules[key][1]}, not '{value}'")


def _own(config: ModelConfig, key: str) -> Iterator[Problem]:
    name = key.removeprefix(SLIPWAY_PREFIX)
    try:
        value = get_parameter(config, name)
    except InvalidConfig as error:
        yield Problem(error.field, error.message)
        return
    wrong = OWN_PARAMETERS[name](value, config) if name in OWN_PARAMETERS else ""
    if wrong:
        yield Problem(f'parameters["{key}"]', wrong)


def unknown_parameters(config: ModelConfig) -> Iterator[Problem]:
    """Yield the parameters that are named as Slipway's own and are none: misspelt, or of another release of Slipway."""
    for key in sorted(config.parameters):
        name = key.removeprefix(SLIPWAY_PREFIX)
        if name != key and name not in OWN_PARAMETERS:
            close = difflib.get_close_matches(name.lower(), OWN_PARAMETERS, n=1)
            meant = f"; did you mean '{SLIPWAY_PREFIX}{close[0]}'?" if close else ""
            yield Problem(f'parameters["{key}"]', f"'{key}' means nothing and is ignored{meant}")


def _execution_timeout_problem(value: Json, config: ModelConfig) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        return f"expected a number of seconds over 0, not {value!r}"
    try:
        kind = KINDS.get(backend_of(config))
        apart = (kind and kind.own_process) or get_parameter(config, ISOLATION) == "process"
    except InvalidConfig:  # told of that parameter itself
        return ""
    if not apart:
        return 'expected slipway.isolation "process" beside it: only a process of its own can be ended by itself'
    return ""


def _isolation_problem(value: Json, config: ModelConfig) -> str:
    return "" if value in ("none", "process") else f'expected "none" or "process", not {json.dumps(value)}'


# name of a slipway.* parameter -> what is wrong with its value, "" for nothing
OWN_PARAMETERS: dict[str, Callable[[Json, ModelConfig], str]] = {
    class_names.PARAMETER: class_names.problem,
    variable_batch.PARAMETER: variable_batch.problem,
    residency.PARAMETER: residency.problem,
    inline_execution.PARAMETER: inline_execution.problem,
    ISOLATION: _isolation_problem,
    EXECUTION_TIMEOUT: _execution_timeout_problem,
    text_generation.PARAMETER: text_generation.problem,
    release.RELEASE: release.release_problem,
    release.ALIASES: release.aliases_problem,
    version_settings.PARAMETER: version_settings.problem,
    traffic.PARAMETER: traffic.traffic_problem,
    step_retries.PARAMETER: step_retries.problem,
}

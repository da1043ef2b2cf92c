"""Rules about optimization and parameters: parameters that a backend reads as numbers or switches, and Slipway's own."""

import difflib
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.backends import KINDS
from repository.config.model_config import SLIPWAY_PREFIX, backend_of, get_parameter
from repository.config.own_parameters import OWN_PARAMETERS
from repository.core.errors import InvalidConfig, Problem

_ACCELERATORS = {
    "gpu_execution_accelerator": ("tensorrt", "cuda", "auto_mixed_precision", "gpu_io"),
    "cpu_execution_accelerator": ("openvino",),
}


def settings(config: ModelConfig) -> Iterator[Problem]:
    yield from _optimization(config)
    yield from parameters(config)


def _optimization(config: ModelConfig) -> Iterator[Problem]:
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
    wrong = OWN_PARAMETERS[name].problem(value, config) if name in OWN_PARAMETERS else ""
    if wrong:
        yield Problem(f'parameters["{key}"]', wrong)


def unknown_parameters(config: ModelConfig) -> Iterator[Problem]:
    """Yield unknown parameters that begin with `slipway.`: misspelt names, or parameters of another release of Slipway."""
    for key in sorted(config.parameters):
        name = key.removeprefix(SLIPWAY_PREFIX)
        if name != key and name not in OWN_PARAMETERS:
            close = difflib.get_close_matches(name.lower(), OWN_PARAMETERS, n=1)
            meant = f"; did you mean '{SLIPWAY_PREFIX}{close[0]}'?" if close else ""
            yield Problem(f'parameters["{key}"]', f"'{key}' means nothing and is ignored{meant}")

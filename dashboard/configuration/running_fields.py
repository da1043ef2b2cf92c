"""The fields of a form for running a model: residency, isolation, response cache, warm-up, and its parameters by key.

Slipway's own settings are `parameters` with names that begin with `slipway.` and values in JSON. The list of parameters omits
those with a separate control. Parameters that the dashboard itself writes have no field.
"""

import json
from collections.abc import Mapping
from typing import TypedDict, cast

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.configuration.field_values import FieldError, number, rows, truth, whole_number
from repository.config.backends import KINDS, ParameterControl
from repository.config.model_config import MAX_VALUES, SLIPWAY_PREFIX, get_parameter
from repository.config.own_parameters import OWN_PARAMETERS, Control
from repository.core.errors import InvalidConfig
from repository.core.json_types import Json

# The controls of Slipway's parameters, by the parameter's name, which is also the field's name.
CONTROLS = {one.name: one.control for one in OWN_PARAMETERS.values() if one.control is not None}
_OF_BACKENDS = [control for kind in KINDS.values() for control in kind.controls]  # their values are texts
_ON = ("true", "1", "on")
_APART = {
    *(SLIPWAY_PREFIX + one.name for one in OWN_PARAMETERS.values() if one.control or one.apart),
    *(control.key for control in _OF_BACKENDS),
}
_MODES = ("", "pinned", "on_demand", "evictable")
_VALUES_OF_A_SAMPLE = 4  # the values of each input: the input itself, its datatype, its dims and its content
_CONTENTS = ("zeros", "random", "own")

PATHS: dict[str, str] = {
    "response_cache": "response_cache",
    "warmups": "model_warmup",
    "parameters": "parameters",
    **{name: f'parameters["{SLIPWAY_PREFIX}{name}"]' for name in (*CONTROLS, "residency")},
    "residency_idle_seconds": f'parameters["{SLIPWAY_PREFIX}residency"].idle_seconds',
    **{control.field: f'parameters["{control.key}"]' for control in _OF_BACKENDS},
}


class WarmupFields(TypedDict):
    """A warm-up sample. content: "zeros" or "random" in every input, or "own" for the inputs that the text has."""

    name: str
    batch_size: int
    count: int
    content: str


class ParameterFields(TypedDict):
    key: str
    value: str


class RunningFields(TypedDict, total=False):
    """The fields for running a model, except the fields of controls. A field of CONTROLS holds a number or None, or whether the
    switch is on. A field of a backend's control holds a text ("" if unset), or whether the switch is on."""

    residency: str  # "", "pinned", "on_demand" or "evictable"
    residency_idle_seconds: float | None
    response_cache: bool
    warmups: list[WarmupFields]
    parameters: list[ParameterFields]


def running_fields(config: ModelConfig) -> RunningFields:
    residency = _value(config, "residency")
    said: Mapping[str, Json] = residency if isinstance(residency, dict) else {}
    found: RunningFields = {
        "residency": str(said.get("mode", "")),
        "residency_idle_seconds": _number(said.get("idle_seconds")),
        "response_cache": config.response_cache.enable,
        "warmups": [_warmup_fields(config, sample) for sample in config.model_warmup],
        "parameters": [
            {"key": key, "value": config.parameters[key].string_value}
            for key in sorted(config.parameters)
            if key not in _APART
        ],
    }
    controls = {name: _read_control(control, _value(config, name)) for name, control in CONTROLS.items()}
    of_backends = {control.field: _read_parameter(config, control) for control in _OF_BACKENDS}
    return cast(RunningFields, {**found, **controls, **of_backends})


def _read_control(control: Control, value: Json) -> bool | float | None:
    return _number(value) if control.on is None else value == control.on


def _read_parameter(config: ModelConfig, control: ParameterControl) -> bool | str:
    text = _text(config, control.key)
    return text.strip().lower() in _ON if control.kind == "switch" else text


def _value(config: ModelConfig, name: str) -> Json:
    try:
        return get_parameter(config, name)
    except InvalidConfig:  # validation reports it
        return None


def _text(config: ModelConfig, key: str) -> str:
    return config.parameters[key].string_value if key in config.parameters else ""


def _number(value: Json) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _warmup_fields(config: ModelConfig, sample: mc.ModelWarmup) -> WarmupFields:
    kinds = {tensor.WhichOneof("input_data_type") for tensor in sample.inputs.values()}
    as_made = sample.inputs and all(
        name in sample.inputs and list(sample.inputs[name].dims) == _sizes(tensor)
        for name, tensor in ((tensor.name, tensor) for tensor in config.input if not tensor.optional)
    )
    content = {"zero_data": "zeros", "random_data": "random"}.get(str(kinds.pop()), "own") if len(kinds) == 1 else "own"
    return {
        "name": sample.name,
        "batch_size": sample.batch_size,
        "count": sample.count,
        "content": content if as_made else "own",
    }


def apply_running(config: ModelConfig, fields: Mapping[str, object]) -> None:
    """Write these fields into a configuration. Raises FieldError if a value has the wrong type."""
    if "parameters" in fields:
        _apply_parameters(config, fields["parameters"])
    _apply_residency(config, fields)
    for name, control in CONTROLS.items():
        if name in fields and control.on is None:
            _set(config, name, _optional(name, fields[name]))
        elif name in fields:
            _set(config, name, control.on if truth(fields[name]) else None)
    for parameter in _OF_BACKENDS:
        if parameter.field in fields:
            value = fields[parameter.field]
            if parameter.kind == "switch":
                value = "true" if truth(value) else ""
            _set_text(config, parameter.key, str(value or "").strip())
    if "response_cache" in fields:
        if truth(fields["response_cache"]):
            config.response_cache.enable = True
        else:
            config.ClearField("response_cache")
    if "warmups" in fields:
        _apply_warmups(config, fields["warmups"])


def _optional(field: str, value: object) -> float | int | None:
    return None if value is None or str(value).strip() == "" else number(field, value)


def _set(config: ModelConfig, name: str, value: Json) -> None:
    """Write a parameter that Slipway defines; a value of None removes it."""
    key = SLIPWAY_PREFIX + name
    if value is None:
        config.parameters.pop(key, None)
    else:
        config.parameters[key].string_value = json.dumps(value)


def _set_text(config: ModelConfig, key: str, value: str) -> None:
    """Write a parameter; "" removes it."""
    if value:
        config.parameters[key].string_value = value
    else:
        config.parameters.pop(key, None)


def _apply_residency(config: ModelConfig, fields: Mapping[str, object]) -> None:
    if "residency" not in fields and "residency_idle_seconds" not in fields:
        return
    now = running_fields(config)
    mode = str(fields.get("residency", now["residency"])).strip()
    if mode not in _MODES:
        raise FieldError("residency", f"expected one of {', '.join(_MODES[1:])}, or nothing, not '{mode[:40]}'")
    if not mode:
        _set(config, "residency", None)
        return
    said: dict[str, Json] = {"mode": mode}
    idle = _optional("residency_idle_seconds", fields.get("residency_idle_seconds", now["residency_idle_seconds"]))
    if mode == "on_demand" and idle is not None:
        said["idle_seconds"] = idle
    _set(config, "residency", said)


def _apply_parameters(config: ModelConfig, given: object) -> None:
    wanted: dict[str, str] = {}
    for index, row in enumerate(rows("parameters", given)):
        key = str(row.get("key", "")).strip()
        if not key and not row.get("value"):
            continue  # a row that nobody has filled in yet
        if not key:
            raise FieldError(f"parameters[{index}].key", "a parameter has no key")
        if key in _APART:
            raise FieldError(f"parameters[{index}].key", f"'{key}' is set elsewhere on this page, or by the dashboard")
        if key in wanted:
            raise FieldError(f"parameters[{index}].key", f"'{key}' is given twice")
        wanted[key] = str(row.get("value", ""))
    for key in [key for key in config.parameters if key not in _APART and key not in wanted]:
        del config.parameters[key]
    for key, value in wanted.items():
        config.parameters[key].string_value = value


def _apply_warmups(config: ModelConfig, given: object) -> None:
    """Write the samples over the present ones in order; a sample whose content does not change keeps its inputs."""
    made: list[mc.ModelWarmup] = []
    samples = rows("warmups", given)
    if len(samples) * len(config.input) * _VALUES_OF_A_SAMPLE > MAX_VALUES:
        raise FieldError(
            "warmups", f"{len(samples)} samples of {len(config.input)} inputs are more than a configuration holds"
        )
    for index, row in enumerate(samples):
        field = f"warmups[{index}]"
        sample = mc.ModelWarmup()
        if index < len(config.model_warmup):
            sample.CopyFrom(config.model_warmup[index])
        was = _warmup_fields(config, sample)["content"] if sample.inputs else ""
        sample.name = str(row.get("name", sample.name)).strip() or f"sample {index + 1}"
        sample.batch_size = whole_number(f"{field}.batch_size", row.get("batch_size", sample.batch_size or 1), least=0)
        sample.count = whole_number(f"{field}.count", row.get("count", sample.count), least=0)
        content = str(row.get("content", was or "zeros"))
        if content not in _CONTENTS:
            raise FieldError(f"{field}.content", f"expected one of {', '.join(_CONTENTS)}, not '{content[:40]}'")
        if content not in (was, "own"):
            _fill(config, sample, content, field)
        made.append(sample)
    del config.model_warmup[:]
    config.model_warmup.extend(made)


def _fill(config: ModelConfig, sample: mc.ModelWarmup, content: str, field: str) -> None:
    if not config.input:
        raise FieldError(f"{field}.content", "name the model's inputs first: the sample is made from them")
    sample.inputs.clear()
    for tensor in config.input:
        if not tensor.optional:
            made = sample.inputs[tensor.name]
            made.data_type = tensor.data_type
            made.dims[:] = _sizes(tensor)
            # Random bytes are not valid text, so texts stay empty.
            if content == "random" and tensor.data_type != mc.TYPE_STRING:
                made.random_data = True
            else:
                made.zero_data = True


def _sizes(tensor: mc.ModelInput) -> list[int]:
    """Return the dims of a sample, with 1 for each variable dimension."""
    return [max(dim, 1) for dim in tensor.dims]

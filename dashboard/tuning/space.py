"""The axes of a tuning, from the present configurations, and the configurations of a setting.

An axis is named "<model>:<parameter>", because an ensemble is tuned together with the models that it calls.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Tuning
from dashboard.shared.exceptions import Conflict
from dashboard.tuning.parameters import BY_NAME, NONE, OFF, PARAMETERS, Limits
from dashboard.tuning.search import Axis, Setting
from repository.config.document import Document


class Space(NamedTuple):
    """axes: each with at least two values. present: the value of each axis now."""

    axes: list[Axis]
    present: dict[str, str]


class Difference(NamedTuple):
    """A parameter whose value a setting changes."""

    model: str
    label: str
    before: str
    after: str


def space_of(documents: Mapping[str, Document], limits: Limits) -> Space:
    """Return the axes of models, by the names of the models. The configurations have no mistakes."""
    space = Space([], {})
    for model, document in documents.items():
        for parameter in PARAMETERS:
            config = document.message
            if not parameter.has(config):
                continue
            here = parameter.read(config)
            values = _ascending({here, *parameter.values(config, limits)})
            if len(values) > 1:
                name = f"{model}:{parameter.name}"
                space.axes.append(Axis(name, values))
                space.present[name] = here
    return space


def space_kept(tuning: Tuning) -> Space:
    """Return the space that was kept when the tuning began."""
    return Space([Axis(name, values) for name, values in tuning.axes.items()], dict(tuning.present))


def documents_of(tuning: Tuning, setting: Setting) -> dict[str, Document]:
    """Return the configurations of a setting: that of the model, and of an ensemble those of its steps."""
    name = tuning.version.model.name
    found = {name: Document.read(tuning.config)} | {step: Document.read(text) for step, text in tuning.steps.items()}
    return {model: _with_values(document, model, setting) for model, document in found.items()}


def differences(tuning: Tuning, setting: Setting) -> list[Difference]:
    """Return the changes of a setting."""
    found = []
    for name, value in setting.items():
        model, _, parameter = name.rpartition(":")
        if value != tuning.present[name]:
            found.append(Difference(model, BY_NAME[parameter].label, tuning.present[name], value))
    return found


def with_changes(tuning: Tuning, document: Document, model: str) -> Document:
    """Return another configuration of a model with the chosen values that differ from the present ones of the tuning.

    Raises Conflict if one of these parameters has another value in it than when the tuning began.
    """
    changed = {name: value for name, value in tuning.chosen.items() if value != tuning.present[name]}
    for name in changed:
        owner, _, parameter = name.rpartition(":")
        if owner == model and BY_NAME[parameter].read(document.message) != tuning.present[name]:
            raise Conflict(
                f"{parameter} of '{model}' was changed since tuning {tuning.pk} began: tune again, or change it yourself"
            )
    return _with_values(document, model, changed)


def _with_values(document: Document, model: str, setting: Setting) -> Document:
    """Return a configuration with the values of a setting; a value that it has already changes nothing."""

    def change(config: ModelConfig) -> None:
        for parameter in PARAMETERS:
            value = setting.get(f"{model}:{parameter.name}")
            if value is not None and parameter.read(config) != value:
                parameter.write(config, value)

    return document.edited(change)


def _ascending(values: Iterable[str]) -> list[str]:
    def size(value: str) -> tuple[int, ...]:
        return (-1,) if value == OFF else (0,) if value == NONE else tuple(int(float(one)) for one in value.split(","))

    return sorted(values, key=size)

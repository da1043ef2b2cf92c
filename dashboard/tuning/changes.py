"""The chosen configuration of a tuning as a change of the present one."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Model, Tuning
from dashboard.releases.selectors import current_document
from dashboard.shared.choices import MeasurementState
from dashboard.shared.exceptions import Conflict
from dashboard.tuning.space import differences, documents_of, with_changes
from repository.config import model_config
from repository.config.document import Document
from repository.config.lines import unified
from repository.core.errors import InvalidConfig


def difference_of(tuning: Tuning) -> str:
    """Return the difference of config.pbtxt, of an ensemble also those of its steps; "" for no difference."""
    before, after = documents_of(tuning, {}), documents_of(tuning, tuning.chosen)
    texts = (
        unified(before[name].text, after[name].text, old_name=f"{name}, present", new_name=f"{name}, tuned")
        for name in before
    )
    return "".join(texts)


def refuse_unchanged(tuning: Tuning) -> None:
    """Raise Conflict if the tuning is not done, or has chosen the present configuration."""
    if tuning.state != MeasurementState.DONE:
        raise Conflict(
            f"tuning {tuning.pk} is {tuning.get_state_display().lower()}: only one that is done can be applied"
        )
    if not differences(tuning, tuning.chosen):
        raise Conflict(f"tuning {tuning.pk} found nothing better than the configuration that it began with")


def changed_models(tuning: Tuning) -> list[str]:
    """Return the names of the models whose configurations the chosen setting changes."""
    return sorted({one.model for one in differences(tuning, tuning.chosen)})


def changed_document(tuning: Tuning, model: Model) -> Document:
    """Return the model's current configuration with the chosen values.

    Raises Conflict if one of these parameters has another value by now than when the tuning began.
    """
    document = current_document(model)
    if document.mistake:
        raise Conflict(f"the configuration of '{model.name}' cannot be read: {document.mistake.message}")
    return with_changes(tuning, document, model.name)


def own_settings(base: ModelConfig, wanted: ModelConfig) -> ModelConfig:
    """Return the settings of a version with which `base` becomes `wanted`.

    Raises Conflict if there are none: settings of a version can add and replace, but take nothing away.
    """
    own = ModelConfig()
    for field, value in wanted.ListFields():
        before = getattr(base, field.name)
        if field.name == "parameters":
            for key in value:
                if key not in before or before[key] != value[key]:
                    own.parameters[key].CopyFrom(value[key])
        elif value != before or not _has(base, field.name):
            own.MergeFrom(_only(wanted, field.name))
    found = ModelConfig()
    found.CopyFrom(base)
    try:
        model_config.merge_overlay(found, own)
    except InvalidConfig as error:
        raise Conflict(f"the chosen configuration cannot be one of a single version: {error.message}") from None
    if found != wanted:
        raise Conflict(
            "the chosen configuration takes a setting away, which the settings of a single version cannot do: apply it directly"
        )
    return own


def _has(config: ModelConfig, name: str) -> bool:
    return any(field.name == name for field, _ in config.ListFields())


def _only(config: ModelConfig, name: str) -> ModelConfig:
    found = ModelConfig()
    found.CopyFrom(config)
    for field, _ in config.ListFields():
        if field.name != name:
            found.ClearField(field.name)
    return found

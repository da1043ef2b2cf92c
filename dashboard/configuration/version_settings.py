"""Shows and changes the settings of one version, which replace the settings of the model.

The settings are part of the model's configuration (`slipway.version_settings`), so that every change is recorded and going back
restores them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.access.authorisation import Actor, Right, require
from dashboard.catalog.archives import reader_in
from dashboard.configuration.field_values import FieldError, whole_number
from dashboard.configuration.services import config_apply, refuse_outdated
from dashboard.models import Model, Release, Version
from dashboard.releases.selectors import current_document, newest_release
from dashboard.releases.storage import adopted_fingerprint, managed_repository
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import Conflict, Invalid
from dashboard.shared.repository_errors import repository_errors
from repository.config import model_config, version_settings
from repository.config.backends import KINDS, BackendKind, ParameterControl
from repository.core.errors import RepositoryError
from repository.core.layout import OVERLAY_FILE

_QUEUE = "queue_max_size"


@dataclass(frozen=True, slots=True)
class Field:
    """One setting of a version. own: the value of this version alone, or None if there is none. otherwise: the value that
    applies without `own`, or None if the server decides. said_by: the source of `otherwise`."""

    name: str
    label: str
    hint: str
    own: int | None
    otherwise: int | None
    said_by: str


_FIELDS = {
    "max_batch_size": ("Largest batch", "Rows that are executed together"),
    "max_queue_delay_microseconds": ("Queue delay", "Microseconds a request may wait for company"),
    _QUEUE: ("Longest queue", "Requests that may wait; more are refused"),
    "instances": ("Instances", "Of an archive: its workers"),
}


@repository_errors()
def fields_of_version(version: Version) -> list[Field]:
    """Return the settings that a version can have, in the order of the form."""
    own, base = _own(version), _without_own(version)
    model, overlay = _model_config(version), _overlay(version)
    archive, kind = _of_archive(version), _kind(version)
    of_backend = {name: (control.label, control.version_hint) for name, control in _controls(kind).items()}
    rows = []
    for name, (label, hint) in (_FIELDS | of_backend).items():
        value, said_by = _value(base, name), ""
        if value is not None:
            own_file = _value(overlay, name) is not None
            said_by = f"its {OVERLAY_FILE}" if own_file else "the model’s configuration" if _value(model, name) else ""
        elif archive.get(name) is not None:
            value, said_by = archive[name], f"its {kind.settings_file}" if kind else ""
        rows.append(Field(name, label, hint, _value(own, name), value, said_by))
    return rows


def versions_with_settings(model: Model) -> list[int]:
    """Return the published versions that have their own settings, in the configuration or in their folders."""
    try:
        said = version_settings.settings_of(current_document(model).message)
    except RepositoryError:
        said = {}
    files = adopted_fingerprint(model)["files"]
    in_folders = {int(name.partition("/")[0]) for name in files if name.partition("/")[2] == OVERLAY_FILE}
    return sorted({*said, *in_folders})


@repository_errors()
def version_settings_apply(
    *, version: Version, fields: Mapping[str, object], actor: Actor, base_release: int | None = None
) -> Release:
    """Make a release in which a version is served with these settings; a value of None or "" leaves a setting to the model.

    Settings that `fields` leaves out do not change.
    Raises Invalid if a value is impossible. Raises Conflict if the version is archived. It also raises the errors of
    `config_apply`.
    """
    require(actor, Right.OPERATE)
    model = version.model
    refuse_outdated(model=model, base_release=base_release)
    if version.state != VersionState.PUBLISHED:
        raise Conflict(f"version {version.number} is archived; restore it first")
    newest = newest_release(model)
    if newest is None:
        raise Conflict(f"model '{model.name}' has no configuration yet; publish a version first")
    said = ModelConfig()
    said.CopyFrom(_own(version))
    for name, value in fields.items():
        _set(version, said, name, value)
    document = newest.document
    settings = version_settings.settings_of(document.message)
    settings[version.number] = said
    shown = f"{version.number} ({version.archive_version})" if version.archive_version else str(version.number)
    did = "Changed" if said != ModelConfig() else "Took away"
    return config_apply(
        model=model,
        actor=actor,
        document=document.edited(lambda config: version_settings.set_settings(config, settings)),
        summary=f"{did} the settings of version {shown}",
        base_release=newest.number,
    )


# -- reading -----------------------------------------------------------------------------------------------------------
def _model_config(version: Version) -> ModelConfig:
    document = current_document(version.model)
    return ModelConfig() if document.mistake else document.message


def _own(version: Version) -> ModelConfig:
    found = version_settings.settings_of(_model_config(version)).get(version.number)
    return found if found is not None else ModelConfig()


def _overlay(version: Version) -> ModelConfig:
    path = managed_repository().version_dir(version.model.name, version.number) / OVERLAY_FILE
    return model_config.parse_file(path) if path.is_file() else ModelConfig()


def _without_own(version: Version) -> ModelConfig:
    config = ModelConfig()
    config.CopyFrom(_model_config(version))
    model_config.merge_overlay(config, _overlay(version))
    return version_settings.for_version(config, None)


def _of_archive(version: Version) -> Mapping[str, int | None]:
    """Return the settings in the archive of a version; {} if there is no archive or it cannot be read."""
    found = reader_in(managed_repository().version_dir(version.model.name, version.number))
    try:
        return found[0].said_settings(found[1]) if found else {}
    except RepositoryError:
        return {}


def _kind(version: Version) -> BackendKind | None:
    """Return the backend that reads a version's format."""
    return next((kind for kind in KINDS.values() if version.format in {one.name for one in kind.formats}), None)


def _controls(kind: BackendKind | None) -> dict[str, ParameterControl]:
    """Return the parameters of a backend that may be set for one version alone, by the names of the settings."""
    return {control.of_version: control for control in kind.controls if control.of_version} if kind else {}


_KEYS = {name: control.key for kind in KINDS.values() for name, control in _controls(kind).items()}


def _value(config: ModelConfig, name: str) -> int | None:
    """Return a value of a configuration, or None for 0, which means absent."""
    if name in _KEYS:
        text = config.parameters[_KEYS[name]].string_value if _KEYS[name] in config.parameters else ""
        return int(text) if text.isdecimal() else None
    if name == "instances":
        return sum(group.count or 1 for group in config.instance_group) or None
    if name == "max_batch_size":
        return config.max_batch_size or None
    if name == _QUEUE:
        return config.dynamic_batching.default_queue_policy.max_queue_size or None
    return config.dynamic_batching.max_queue_delay_microseconds or None


# -- writing -----------------------------------------------------------------------------------------------------------
def _set(version: Version, said: ModelConfig, name: str, value: object) -> None:
    controls = _controls(_kind(version))
    if name not in _FIELDS and name not in controls:
        raise Invalid.at(name, f"there is no setting '{name}' of this version")
    try:
        number = None if value is None or str(value).strip() == "" else whole_number(name, value, least=1)
    except FieldError as error:
        raise Invalid.at(name, error.message) from None
    if name in controls:
        _set_parameter(said, controls[name].key, number)
    elif name == "instances":
        _set_instances(version, said, number)
    elif name == "max_batch_size":
        said.max_batch_size = number or 0
    else:
        _set_batching(said, name, number or 0)


def _set_parameter(said: ModelConfig, key: str, number: int | None) -> None:
    said.parameters.pop(key, None)
    if number is not None:
        said.parameters[key].string_value = str(number)


def _set_instances(version: Version, said: ModelConfig, number: int | None) -> None:
    """Set one instance group: the model's first group with this count. A count of None removes the group."""
    groups = list(_without_own(version).instance_group)
    said.ClearField("instance_group")
    if number is not None:
        group = said.instance_group.add()
        if groups:
            group.CopyFrom(groups[0])
        group.count = number
    kind = _kind(version)
    for key in kind.instance_counts if kind else ():
        _set_parameter(said, key, number)


def _set_batching(said: ModelConfig, name: str, number: int) -> None:
    batching = said.dynamic_batching
    if name == _QUEUE:
        batching.default_queue_policy.max_queue_size = number
        if not batching.default_queue_policy.ListFields():
            batching.ClearField("default_queue_policy")
    else:
        batching.max_queue_delay_microseconds = number
    if not batching.ListFields():
        said.ClearField("dynamic_batching")

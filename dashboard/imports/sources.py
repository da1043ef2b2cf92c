"""Reads a set-up of TorchServe from a folder or from uploads, and the properties of it that matter to models.

The command may name any file. The page and REST may name only folders in SLIPWAY_IMPORT_FOLDERS and uploaded archives. Imports
of these follow no link out of the folders and insert no variable of the dashboard's environment.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import javaproperties
from django.conf import settings

from dashboard.models import Upload
from dashboard.models.job import StoreParams
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import Forbidden, Invalid, NotFound
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads.states import UNFINISHED
from repository.core.addresses import leads_into
from repository.torchserve import java_properties, set_up
from repository.torchserve import properties as ts_properties
from repository.torchserve.archive_names import archives_in
from repository.torchserve.model_archive import MANIFEST
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.properties import InvalidProperties, Properties
from repository.torchserve.set_up import Failure, SetUp
from repository.torchserve.snapshot_files import last_snapshot

CONFIG = "config.properties"
WAR = ".war"  # the end of a workflow's archive
ARCHIVE = "model.mar"  # the name of an archive in the folder of its version
MAX_PROPERTIES_BYTES = 1 << 20  # the largest config.properties that may come with uploaded archives
# The properties that decide how models are served. The others are about listeners.
_OF_MODELS = (
    *("model_store", "workflow_store", "load_models", "models", "model_snapshot", "default_workers_per_model"),
    *("job_queue_size", "default_response_timeout", "default_startup_timeout", "batch_size", "max_batch_delay"),
    *(
        "number_of_gpu",
        "install_py_dep_per_model",
        "default_service_handler",
        "service_envelope",
        "limit_max_image_pixels",
    ),
    *("metrics_mode", "metrics_config", "model_metrics_auto_detect", "enable_envvars_config"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """A set-up as it was read.

    properties: the names of the properties that its files set. origin: sentences that say where it was read from.
    """

    set_up: SetUp
    options: TorchServeOptions
    properties: frozenset[str] = frozenset()
    origin: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    uploads: Mapping[str, Upload] = field(default_factory=dict)  # name of an archive -> the upload that brought it


def allowed_folder(folder: str) -> Path:
    """Return a folder that an administrator has allowed. Raises Forbidden if the folder is not allowed."""
    found = next((path for path in settings.IMPORT_FOLDERS if str(path) == folder), None)
    if found is None:
        raise Forbidden("this folder may not be imported; an administrator allows folders by SLIPWAY_IMPORT_FOLDERS")
    return Path(found)


class ImportFolder(NamedTuple):
    """A folder that an administrator has allowed. archives: the number of archives directly in it."""

    folder: str
    archives: int
    config: bool


def import_folders() -> list[ImportFolder]:
    """Return the folders that may be imported and exist."""
    found = []
    for folder in settings.IMPORT_FOLDERS:
        try:
            named = [folder / name for name in archives_in(folder)]
            archives = sum(path.is_file() or (path / MANIFEST).is_file() for path in named)
            archives += len(list(folder.glob(f"*{WAR}")))
        except OSError:
            continue
        found.append(ImportFolder(str(folder), archives, (folder / CONFIG).is_file()))
    return found


def unreadable_folders() -> list[str]:
    """Return a sentence for each allowed folder that cannot be read."""
    found = []
    for folder in settings.IMPORT_FOLDERS:
        try:
            archives_in(folder)
        except OSError as error:
            found.append(f"{folder} is allowed, and cannot be read: {error.strerror}")
    return found


@repository_errors()
def read_source(params: StoreParams) -> Source:
    """Read the set-up that a job or a preview names. Raises Invalid, NotFound or Forbidden if the set-up cannot be imported."""
    try:
        return _of_uploads(params) if "uploads" in params else _of_folder(params)
    except InvalidProperties as error:
        raise Invalid(str(error)) from None
    except OSError as error:
        raise Invalid(f"the model store cannot be read: {error.strerror}") from None


# -- archives that were uploaded ---------------------------------------------------------------------------------------
def _of_uploads(params: StoreParams) -> Source:
    uploads: dict[str, Upload] = {}
    gone = []
    for upload in Upload.objects.filter(pk__in=params["uploads"]).prefetch_related("files"):
        name = params.get("names", {}).get(str(upload.pk)) or archive_name(upload)
        if upload.state not in (*UNFINISHED, UploadState.PUBLISHED):
            gone.append(Failure(name, upload.error or "its upload was cancelled; choose it again"))
            continue
        if name in uploads:
            raise Invalid(f"two archives are called '{name}'; rename one of them")
        uploads[name] = upload
    if len(uploads) + len(gone) < len(set(params["uploads"])):
        raise NotFound("an upload is there no more; choose its archive again")
    properties = properties_of(params.get("properties", ""))
    options, notes = _options(properties, {}, None)
    files = {name: _bytes_of(upload) for name, upload in uploads.items()}
    told = ["Archives that were uploaded" + (f", with {CONFIG}" if properties.values else "")]
    wars = {name: path for name, path in files.items() if name.lower().endswith(WAR)}
    read = set_up.read(options, {name: path for name, path in files.items() if name not in wars}, wars)
    read = replace(read, failures=[*gone, *read.failures])
    return Source(read, options, frozenset(properties.values), told, [*notes, *read.notes], uploads)


def archive_name(upload: Upload) -> str:
    """Return the name of an uploaded archive; if its file is gone or was renamed, a name made from the model's name."""
    file = upload.files.first()
    if file is None:
        return upload.model_name
    return file.path if file.path != ARCHIVE else f"{upload.model_name}.mar"


def _bytes_of(upload: Upload) -> Path:
    """Return the path of an upload's archive: in the upload's folder, or in its version's folder after publication."""
    version = upload.versions.first()
    if version is None:
        return upload.folder / "files" / "0"
    return managed_repository().version_dir(upload.model_name, version.number) / ARCHIVE


def kept_properties(text: str) -> str:
    """Return a text of properties without the values that an import does not need, because they may be secrets."""
    kept = {key: value if key in _OF_MODELS else "" for key, value in properties_of(text).values.items()}
    return javaproperties.dumps(kept, timestamp=None)


def properties_of(text: str) -> Properties:
    """Return the properties of a text. Raises Invalid if the text cannot be parsed."""
    try:
        return Properties(CONFIG, java_properties.parse(text))
    except java_properties.MalformedProperties as error:
        raise Invalid(f"{CONFIG}, {error}") from None


# -- a folder ----------------------------------------------------------------------------------------------------------
def _of_folder(params: StoreParams) -> Source:
    anywhere = bool(params.get("system"))
    folder = Path(params["folder"]) if anywhere else allowed_folder(params["folder"])
    config = Path(params["config"]) if params.get("config") else folder / CONFIG
    environment = dict(os.environ) if anywhere else {}
    told, properties, snapshot = [], Properties(), None
    if config.is_file():
        _refuse_outside(config, anywhere)
        properties = ts_properties.read(config, environment)
        told.append(f"Properties of {config}")
    elif params.get("config"):
        raise NotFound(f"there is no file {config}")
    if params.get("snapshots", True):
        logs = Path(environment["LOG_LOCATION"]) if environment.get("LOG_LOCATION") else folder / "logs"
        snapshot = last_snapshot(logs, told.append)
    if snapshot is not None:
        _refuse_outside(snapshot, anywhere)
        kept = ts_properties.read(snapshot, environment).values.get("model_snapshot")
        if kept:
            properties = Properties(properties.name, {**properties.values, "model_snapshot": kept})
            told.append(f"What was registered last, from the snapshot {snapshot.name}")
    options, notes = _options(properties, environment, folder)
    if params.get("models"):
        options = replace(options, load_models=ts_properties.load_models(params["models"]), model_snapshot=None)
    store = _store(params, options, folder)
    if not store.is_dir():
        raise NotFound(f"there is no folder {store} with the archives; name it by model_store")
    _refuse_outside(store, anywhere)
    told.append(f"Archives in {store}")
    if not anywhere:
        options, notes = _without_paths(options, notes)
    workflows = folder / options.workflow_store if options.workflow_store else store
    _refuse_outside(workflows, anywhere)
    if workflows != store:
        told.append(f"Workflows in {workflows}")
    archives = {name: store / name for name in archives_in(store)}
    wars = {path.name: path for path in sorted(workflows.glob(f"*{WAR}"))}
    outside = {name for name, path in {**archives, **wars}.items() if not anywhere and not _is_allowed(path)}
    notes += [
        f"{name} is passed over: it is a link that leads out of the folders that may be imported"
        for name in sorted(outside)
    ]
    read = set_up.read(
        options,
        {name: path for name, path in archives.items() if name not in outside},
        {name: path for name, path in wars.items() if name not in outside},
    )
    return Source(read, options, frozenset(properties.values), told, [*notes, *read.notes])


def _store(params: StoreParams, options: TorchServeOptions, folder: Path) -> Path:
    named = Path(params["model_store"]) if params.get("model_store") else options.model_store
    return folder / named if named is not None else folder


def _refuse_outside(path: Path, anywhere: bool) -> None:
    if not anywhere and not _is_allowed(path):
        raise Forbidden(
            f"'{path.name}' is outside of the folders that may be imported; an administrator allows its folder by "
            "SLIPWAY_IMPORT_FOLDERS"
        )


def _is_allowed(path: Path) -> bool:
    return any(leads_into(path, folder) for folder in settings.IMPORT_FOLDERS)


def _without_paths(options: TorchServeOptions, notes: list[str]) -> tuple[TorchServeOptions, list[str]]:
    """Remove metrics_config if its file is outside the allowed folders, because the server would read that file."""
    if options.metrics_config is None or _is_allowed(options.metrics_config):
        return options, notes
    sentence = "metrics_config is passed over: the file is outside of the folders that may be imported"
    return replace(options, metrics_config=None), [*notes, sentence]


def _options(
    properties: Properties, environment: Mapping[str, str], folder: Path | None
) -> tuple[TorchServeOptions, list[str]]:
    """Return the options that matter to models, and a sentence for each property without effect."""
    of_models = {key: value for key, value in properties.values.items() if key in _OF_MODELS}
    options, notes = ts_properties.torchserve_options(Properties(properties.name, of_models), environment)
    notes += ts_properties.passed_over(properties)
    if "load_models" not in of_models:  # the models may have been named on a command line
        options = replace(options, load_models=("all",))
    others = [key for key in properties.values if key in ts_properties.HONOURED and key not in _OF_MODELS]
    if others:
        notes.append(
            f"{', '.join(others)}: about listeners, not about models; SLIPWAY_TORCHSERVE_CONFIG has the bundled server serve "
            "by them"
        )
    if options.metrics_config is not None:
        path = options.metrics_config if folder is None else folder / options.metrics_config
        if not path.is_file() or folder is None:
            notes.append("metrics_config is passed over: its file is not here")
        options = replace(options, metrics_config=path.resolve() if path.is_file() and folder is not None else None)
    return options, notes

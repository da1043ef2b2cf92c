"""What a TorchServe archive holds, for people who look at an upload or a version; nothing of it runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from dashboard.models import Model, Version
from dashboard.models.version import ArchiveFacts
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import DashboardError, NotFound
from dashboard.shared.repository_errors import repository_errors
from repository.core.errors import RepositoryError
from repository.core.json_types import Json
from repository.torchserve import model_archive
from repository.torchserve.model_archive import FOLDER, Manifest, ModelSettings

BACKEND = "torchserve"
TEXT_BYTES = 64 << 10  # of a file that is shown
FILES_MOST = 500
_VALUE_MOST = 300  # characters of a setting
_TEXTS = (".py", ".txt", ".json", ".yaml", ".yml", ".md", ".cfg", ".ini", ".toml", ".csv", ".sh")
# Keys of model-config.yaml that decide how the model is served -> what they are here.
_MEANINGS = {
    "batchSize": "the largest batch",
    "maxBatchDelay": "milliseconds that a request may wait for company: the queue delay",
    "minWorkers": "workers: the instances of the model",
    "maxWorkers": "the most workers that somebody may ask for",
    "responseTimeout": "seconds that a batch may take, then its worker is replaced",
    "startupTimeout": "seconds that a worker may take to load the model",
    "deviceType": "where the workers run",
    "deviceIds": "the GPUs that the workers are divided among",
    "jobQueueSize": "requests that may wait: the longest queue",
    "clientTimeoutInMills": "milliseconds that a request may wait for a worker",
    "parallelType": "how a model is divided among processes",
}


class Setting(NamedTuple):
    """A key of model-config.yaml. meaning: what it does here; "" for one that is the handler's own."""

    key: str
    value: str
    meaning: str
    served: bool


class ArchivedFile(NamedTuple):
    """A file of an archive. shown: whether it can be looked at as text."""

    name: str
    size: int
    shown: bool


class ShownText(NamedTuple):
    """A file as text; `cut`: that only its first TEXT_BYTES are there."""

    name: str
    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class ModelArchive:
    """An archive. handler_file: "" for a handler that TorchServe brings; source: of the handler, or of the file asked for."""

    manifest: Manifest
    handler_file: str
    streams: bool
    settings: list[Setting]
    files: list[ArchivedFile]
    files_total: int
    requirements: str
    source: ShownText | None


def archive_in(folder: Path) -> Path | None:
    """Return where the archive of a version's folder lies: a file, or the folder that it was unpacked into; None for none."""
    if (folder / FOLDER).is_dir():
        return folder
    found = sorted(folder.glob("*.mar")) if folder.is_dir() else []
    return next((path for path in found if path.name == "model.mar"), found[0] if found else None)


def facts_in(folder: Path) -> ArchiveFacts | None:
    """Return what lists say of the archive in a version's folder; None where there is none that can be read."""
    path = archive_in(folder)
    try:
        if path is None:
            return None
        manifest, _, _, streams = model_archive.read_archive(path)
    except RepositoryError:
        return None
    return {
        "name": manifest.name[:200],
        "version": manifest.version[:100],
        "handler": manifest.handler[:200],
        "streams": streams,
    }


def archive_of(version: Version, shown: str = "") -> ModelArchive:
    """Return the archive of a version, wherever its files are. NotFound: it is none, or holds no file `shown`."""
    repository = managed_repository()
    name, number = version.model.name, version.number
    archived = version.state == VersionState.ARCHIVED
    folder = repository.archived_version_dir(name, number) if archived else repository.version_dir(name, number)
    path = archive_in(folder)
    if path is None:
        raise NotFound(f"version {number} of '{name}' is no TorchServe archive")
    return archive_at(path, shown)


def served_archive(model: Model, live: Sequence[int]) -> ModelArchive | None:
    """Return the archive of the newest version that is live, or else published; None where that is none, or cannot be read."""
    rows = model.versions.filter(state=VersionState.PUBLISHED)
    version = (rows.filter(number__in=live) if live else rows).select_related("model").order_by("-number").first()
    if version is None or "archive" not in version.details:
        return None
    try:
        return archive_of(version)
    except DashboardError:
        return None


@repository_errors()
def archive_at(path: Path, shown: str = "") -> ModelArchive:
    """Return what an archive holds. Invalid: it is none; NotFound: it holds no file `shown` that is text."""
    manifest, settings, sizes, streams = model_archive.read_archive(path)
    handler = model_archive.handler_file(manifest, sizes)
    if shown and not _is_text(shown, sizes):
        raise NotFound(f"the archive has no text '{shown[:80]}'")
    wanted = shown or handler
    rows = [ArchivedFile(name, sizes[name], _is_text(name, sizes)) for name in sorted(sizes)]
    return ModelArchive(
        manifest=manifest,
        handler_file=handler,
        streams=streams,
        settings=_settings(settings),
        files=rows[:FILES_MOST],
        files_total=len(rows),
        requirements=_text(path, manifest.requirements_file).text if manifest.requirements_file else "",
        source=_text(path, wanted) if wanted and _is_text(wanted, sizes) else None,
    )


def _is_text(name: str, sizes: Mapping[str, int]) -> bool:
    return name in sizes and name.lower().endswith(_TEXTS) and sizes[name] <= model_archive.MAX_TEXT_BYTES


def _text(path: Path, name: str) -> ShownText:
    content = model_archive.read_file(path, name)
    text = content[:TEXT_BYTES].decode(errors="replace").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    return ShownText(name, text, len(content) > TEXT_BYTES)


def _settings(settings: ModelSettings) -> list[Setting]:
    """Return the keys: first those that decide how it is served, then those without a meaning here, then the handler's own."""
    order = [*_MEANINGS, *settings.unserved]
    keys = [*(key for key in order if key in settings.whole), *(key for key in settings.whole if key not in order)]
    return [
        Setting(
            key,
            _written(settings.whole[key]),
            _MEANINGS.get(key, ""),
            key not in settings.unserved and key not in settings.unusable,
        )
        for key in keys
    ]


def _written(value: Json) -> str:
    """Return a value as YAML has it, cut."""
    nested = isinstance(value, dict | list)
    scalar = value if isinstance(value, str) else json.dumps(value)
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True).strip() if nested else scalar
    return text if len(text) <= _VALUE_MOST else f"{text[:_VALUE_MOST]} …"

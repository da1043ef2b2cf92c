"""What the archive of a version holds, for people who look at an upload or a version; nothing of it runs.

A backend's archive brings its own settings and code. An `ArchiveReader` of a plugin reads those of one backend.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from django.utils.module_loading import import_string

from dashboard.models import Model, Version
from dashboard.models.version import ArchiveFacts
from dashboard.plugins.table import PLUGINS
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import DashboardError, NotFound
from dashboard.shared.repository_errors import repository_errors
from repository.config.backends import KINDS
from repository.core.errors import RepositoryError


class Setting(NamedTuple):
    """A setting that an archive says. meaning: what it does here; "" for one that is the handler's own."""

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
    """A file as text; `cut`: that only its beginning is there."""

    name: str
    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class ModelArchive:
    """An archive. template: shows it. manifest: by `whole` in full. handler_file: "" for a handler that the backend brings;
    source: of the handler, or of the file asked for."""

    template: str
    manifest: object
    handler_file: str
    streams: bool
    settings: list[Setting]
    files: list[ArchivedFile]
    files_total: int
    requirements: str
    source: ShownText | None


class ArchiveReader(ABC):
    """Reads the archives of one backend. Methods raise RepositoryError for an archive that cannot be read."""

    backend: str

    @abstractmethod
    def find(self, folder: Path) -> Path | None:
        """Return where the archive of a version's folder lies: its file, or the folder that it was unpacked into."""

    @abstractmethod
    def facts(self, path: Path) -> ArchiveFacts:
        """Return what lists say of an archive."""

    @abstractmethod
    def read(self, path: Path, shown: str) -> ModelArchive:
        """Return what an archive holds, with the text of the file `shown`, "" for the handler's. NotFound: it has none."""

    @abstractmethod
    def said_settings(self, path: Path) -> Mapping[str, int | None]:
        """Return the settings of a version that an archive says itself, by their names in `configuration.version_settings`."""

    @abstractmethod
    def is_foreign(self, path: Path) -> bool:
        """Whether a sound file is none of its archives, though its name ends as theirs do."""


@functools.cache
def readers() -> tuple[ArchiveReader, ...]:
    return tuple(import_string(name) for plugin in PLUGINS for name in plugin.archive_readers)


def reader_in(folder: Path) -> tuple[ArchiveReader, Path] | None:
    """Return the reader of the archive in a version's folder, and where it lies; None for none."""
    found = ((reader, reader.find(folder)) for reader in readers())
    return next(((reader, path) for reader, path in found if path is not None), None)


def facts_in(folder: Path) -> ArchiveFacts | None:
    """Return what lists say of the archive in a version's folder; None where there is none that can be read."""
    found = reader_in(folder)
    try:
        return found[0].facts(found[1]) if found else None
    except RepositoryError:
        return None


@repository_errors()
def archive_in(folder: Path, shown: str = "") -> ModelArchive | None:
    """Return what the archive in a version's folder holds, None for none. NotFound: it holds no file `shown` that is text."""
    found = reader_in(folder)
    return found[0].read(found[1], shown) if found else None


def archive_of(version: Version, shown: str = "") -> ModelArchive:
    """Return the archive of a version, wherever its files are. NotFound: it is none, or holds no file `shown`."""
    repository = managed_repository()
    name, number = version.model.name, version.number
    archived = version.state == VersionState.ARCHIVED
    folder = repository.archived_version_dir(name, number) if archived else repository.version_dir(name, number)
    archive = archive_in(folder, shown)
    if archive is None:
        kinds = " or ".join(KINDS[reader.backend].formats[0].title for reader in readers()) or "archive"
        raise NotFound(f"version {number} of '{name}' is no {kinds}")
    return archive


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

"""Reads the archive of a version for the pages of uploads and versions, without running its code.

Each backend has its own archive format. A plugin adds an `ArchiveReader`, which reads the archives of one backend.
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
    """A setting in an archive. meaning: its effect; "" if only the handler reads it. served: whether the server honours it."""

    key: str
    value: str
    meaning: str
    served: bool


class ArchivedFile(NamedTuple):
    """A file of an archive. shown: whether pages can show it as text."""

    name: str
    size: int
    shown: bool


class ShownText(NamedTuple):
    """A file as text. cut: whether only the beginning of the file is included."""

    name: str
    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class ModelArchive:
    """An archive. template: the template that shows it. manifest: the manifest as its reader parsed it. handler_file: "" if the
    handler is part of the backend. source: the text of the handler, or of the file that was requested."""

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
        """Return the path of the archive in a version's folder (a file, or the folder with its unpacked files), or None."""

    @abstractmethod
    def facts(self, path: Path) -> ArchiveFacts:
        """Return the facts about an archive that lists show."""

    @abstractmethod
    def read(self, path: Path, shown: str) -> ModelArchive:
        """Return the contents of an archive, with the text of the file `shown` ("" for the handler).

        Raises NotFound if there is no such text.
        """

    @abstractmethod
    def said_settings(self, path: Path) -> Mapping[str, int | None]:
        """Return the settings of a version that an archive sets, by their names in `configuration.version_settings`."""

    @abstractmethod
    def is_foreign(self, path: Path) -> bool:
        """Return whether a file that has the suffix of this backend's archives is an intact file of another kind."""


@functools.cache
def readers() -> tuple[ArchiveReader, ...]:
    return tuple(import_string(name) for plugin in PLUGINS for name in plugin.archive_readers)


def reader_in(folder: Path) -> tuple[ArchiveReader, Path] | None:
    """Return the reader of the archive in the folder of a version, and the archive's path, or None if there is no archive."""
    found = ((reader, reader.find(folder)) for reader in readers())
    return next(((reader, path) for reader, path in found if path is not None), None)


def facts_in(folder: Path) -> ArchiveFacts | None:
    """Return the facts that lists show about the archive in a folder, or None if there is no archive or it cannot be read."""
    found = reader_in(folder)
    try:
        return found[0].facts(found[1]) if found else None
    except RepositoryError:
        return None


@repository_errors()
def archive_in(folder: Path, shown: str = "") -> ModelArchive | None:
    """Return the archive in the folder of a version, or None if there is none.

    Raises NotFound if the archive has no text `shown`.
    """
    found = reader_in(folder)
    return found[0].read(found[1], shown) if found else None


def archive_of(version: Version, shown: str = "") -> ModelArchive:
    """Return the archive of a version, wherever its files are.

    Raises NotFound if the version has no archive or no file `shown`.
    """
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
    """Return the archive of the newest live version, else of the newest published one, or None if there is none to read."""
    rows = model.versions.filter(state=VersionState.PUBLISHED)
    version = (rows.filter(number__in=live) if live else rows).select_related("model").order_by("-number").first()
    if version is None or "archive" not in version.details:
        return None
    try:
        return archive_of(version)
    except DashboardError:
        return None

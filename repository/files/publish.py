"""Puts versions into the repository and takes them out. A reader sees a whole version or none.

A version is prepared in a hidden folder on the disk of the repository, hashed and flushed. Then one rename makes it visible
(repository.files.staging). A move between the repository and an archive on another disk copies all files before it removes any
file. After an interruption, a second call completes the move.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from repository.config.document import Document
from repository.core.errors import Conflict, NotFound, Unreachable, UnsafePath
from repository.core.layout import (
    CONFIG_FILE,
    ModelRepository,
    check_name,
    parse_version,
    relative_path,
)
from repository.files import signatures, storage
from repository.files.progress import SILENT, Progress
from repository.files.staging import copied, remove, rename, same_content, staging_folder
from repository.files.storage import Manifest

_LOCKS = ".locks"


@dataclass(frozen=True, slots=True)
class Staged:
    """The files of a version on the disk of the repository, hashed and flushed, in a folder that no reader looks into."""

    folder: Path
    manifest: Manifest


@contextlib.contextmanager
def stage_version(
    repository: ModelRepository,
    *,
    version: int,
    source: Path | None,
    move: bool = False,
    signing_key: Path | None = None,
    progress: Progress = SILENT,
) -> Iterator[Staged]:
    """Do the long part of publishing. A version that the block does not place is removed at the end of the block.

    Raises NoSpace, UnsafePath, and RepositoryError if the version cannot be signed. signing_key: PEM file of the private key
    that signs it. move: whether to hard-link the files of `source`, not copy them, if it is on the same disk.
    """
    with staging_folder(repository, repository.root) as work:
        yield _stage(repository, source, work / str(version), move, signing_key, progress)


def place_version(
    repository: ModelRepository,
    staged: Staged,
    *,
    name: str,
    document: Document | None = None,
    release: int = 0,
    model_files: Mapping[str, bytes] | None = None,
) -> Path:
    """Do the short part of publishing, one rename. Return the folder of the version.

    document becomes config.pbtxt, with the number of its release. model_files, such as labels, go next to config.pbtxt.

    Raises UnsafePath, InvalidConfig, and Conflict if the version exists or is archived. After an error nothing has changed.
    """
    contents = _contents(document, release, model_files)
    with _locked(repository, name):
        placed = _unused(repository, name, int(staged.folder.name))
        add = _add_version if placed.parent.is_dir() else _add_model
        add(placed, staged.folder, contents)
    return placed


@contextlib.contextmanager
def placed_version(
    repository: ModelRepository,
    staged: Staged,
    *,
    name: str,
    document: Document,
    release: int,
    model_files: Mapping[str, bytes],
) -> Iterator[Path]:
    """Do `place_version` for the block. If the bucket does not take the version in the block, move it out again."""
    new = not repository.has_model(name)
    placed = place_version(repository, staged, name=name, document=document, release=release, model_files=model_files)
    try:
        yield placed
    except (Conflict, Unreachable):
        with _locked(repository, name):
            rename(placed.parent if new else placed, staged.folder.parent / "refused")
        raise


def write_beside(
    repository: ModelRepository, *, name: str, document: Document, release: int, model_files: Mapping[str, bytes]
) -> None:
    """Write the files of `place_version` next to the version, if a process died between the rename and these files."""
    contents = _contents(document, release, model_files)
    with _locked(repository, name):
        _write_contents(repository.existing_model_dir(name), contents)


def write_config(repository: ModelRepository, *, name: str, document: Document, release: int) -> None:
    """Replace config.pbtxt with a document, and add its release's number. Raises InvalidConfig for a text with mistakes."""
    content = _content(document, release)
    with _locked(repository, name):
        repository.existing_model_dir(name)
        storage.write_atomic(repository.config_path(name), content)


def remove_config(repository: ModelRepository, *, name: str) -> None:
    """Leave a model without config.pbtxt."""
    with _locked(repository, name):
        repository.config_path(name).unlink(missing_ok=True)


def archive_version(repository: ModelRepository, *, name: str, version: int, progress: Progress = SILENT) -> None:
    """Move a version to the archive. Do nothing if it is already there."""
    source, target = repository.version_dir(name, version), repository.archived_version_dir(name, version)
    if target.is_dir() and not source.is_dir():
        return
    repository.existing_version_dir(name, version)
    _move(repository, name, source, target, (repository.root, repository.archive), progress)


def restore_version(repository: ModelRepository, *, name: str, version: int, progress: Progress = SILENT) -> None:
    """Move a version back from the archive, under its own number. Do nothing if it is already back."""
    source, target = repository.archived_version_dir(name, version), repository.version_dir(name, version)
    repository.existing_model_dir(name)
    if target.is_dir() and not source.is_dir():
        return
    if not source.is_dir():
        raise NotFound(f"version {version} of '{name}' is not archived")
    _move(repository, name, source, target, (repository.archive, repository.root), progress)


def _move(
    repository: ModelRepository,
    name: str,
    source: Path,
    target: Path,
    places: tuple[Path, Path],
    progress: Progress,
) -> None:
    """Move a version between the repository and the archive. Files for another disk are copied first, without the lock."""
    begin, end = places
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir():
        same_content(source, target, f"version {source.name} of '{name}'")
    elif storage.same_disk(source, target.parent):
        with _locked(repository, name):
            rename(source, target)
        return
    else:
        with staging_folder(repository, end) as work:
            copy = copied(repository, source, work, progress)
            with _locked(repository, name):
                rename(copy, target)
    remove(repository, source, begin)


def delete_model(repository: ModelRepository, *, name: str) -> None:
    """Remove a model with all its versions, also those in the archive. The model disappears before its files are removed."""
    with _locked(repository, name):
        remove(repository, repository.existing_model_dir(name), repository.root)
        archived = repository.archive / check_name(name)
        if archived.is_dir():
            remove(repository, archived, repository.archive)


@contextlib.contextmanager
def _locked(repository: ModelRepository, name: str) -> Iterator[None]:
    """Lock one model against changes by other processes, for the short time of a rename."""
    with storage.locked(repository.staging / _LOCKS / check_name(name), f"model '{name}'"):
        yield


def _contents(document: Document | None, release: int, model_files: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Return the contents of the files that belong to no version, by their names in the model's folder."""
    contents: dict[str, bytes] = {}
    for name, content in (model_files or {}).items():
        first = relative_path(name).parts[0]
        if name == CONFIG_FILE or parse_version(first) is not None:
            raise UnsafePath(f"'{name}' cannot be next to the versions of a model")
        contents[name] = content
    if document is not None:
        contents[CONFIG_FILE] = _content(document, release)
    return contents


def _content(document: Document, release: int) -> bytes:
    _ = document.message  # raises InvalidConfig for a text with mistakes
    return document.stamped(release).encode()


def _unused(repository: ModelRepository, name: str, version: int) -> Path:
    """Return the folder of a new version. Raises Conflict if the number is used."""
    place = repository.version_dir(name, version)
    if place.exists() or repository.archived_version_dir(name, version).exists():
        raise Conflict(f"version {version} of '{name}' exists already; versions are never changed or replaced")
    return place


def _stage(
    repository: ModelRepository,
    source: Path | None,
    staged: Path,
    move: bool,
    signing_key: Path | None,
    progress: Progress,
) -> Staged:
    """Collect the files of a version, signed where asked, read-only, hashed and flushed to disk."""
    if source is None:
        staged.mkdir()
        return Staged(staged, Manifest({}))
    if move and storage.same_disk(source, staged.parent):
        progress.plan(2 * storage.link_tree(source, staged))
    else:
        size = storage.tree_size(source)
        storage.ensure_space(staged.parent, size, repository.reserve)
        progress.plan(3 * size)
        progress.step("Copying to the repository")
        with storage.full_disk_is_no_space(size, staged.parent):
            storage.copy_tree(source, staged, progress)
    progress.step("Hashing")
    manifest = storage.hash_tree(staged, progress)
    if signing_key is not None:
        progress.step("Signing")
        manifest = signatures.sign(staged, signing_key, manifest)
    for name in manifest.files:
        (staged / name).chmod(0o444)
    progress.step("Flushing to the disk")
    storage.sync_tree(staged, progress)
    return Staged(staged, manifest)


def _add_model(placed: Path, staged: Path, contents: Mapping[str, bytes]) -> None:
    """Make a new model visible, with all its files, by one rename."""
    folder = staged.parent / "model"
    folder.mkdir()
    staged.rename(folder / staged.name)
    _write_contents(folder, contents)
    storage.sync_tree(folder)
    rename(folder, placed.parent)


def _add_version(placed: Path, staged: Path, contents: Mapping[str, bytes]) -> None:
    rename(staged, placed)
    try:
        _write_contents(placed.parent, contents)
    except BaseException:
        rename(placed, staged)
        raise


def _write_contents(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomic(path, content)

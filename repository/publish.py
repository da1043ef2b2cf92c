"""Putting versions into the repository and taking them out: all or nothing, never half, never twice.

Everything is made ready in the staging folder, on the repository's own file system, hashed and flushed to disk; one
rename then makes it visible. What a killed process leaves behind lies in staging under `.publish-*`, where no reader
looks, and `remove_leftovers` clears it away.
"""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from repository import storage
from repository.errors import Conflict, NotFound, UnsafePath
from repository.layout import CONFIG_FILE, ModelRepository, check_name, parse_version, relative_path, version_folders
from repository.model_config import parse
from repository.storage import Manifest

_PREFIX = ".publish-"
_LOCKS = ".locks"
LEFTOVER_AGE_S = 24 * 3600.0


def publish_version(
    repository: ModelRepository,
    *,
    name: str,
    version: int,
    source: Path | None,
    config_text: str | None = None,
    model_files: Mapping[str, bytes] | None = None,
    move: bool = False,
) -> Manifest:
    """Make the files in `source` version `version` of model `name`, which is made where there is none.

    source: a folder of plain files; None for an ensemble, whose version folder is empty. With move=True it is used up.
    config_text becomes config.pbtxt; model_files (labels, say) lie beside it.
    Raises Conflict where the version exists or is archived, NoSpace, UnsafePath, InvalidConfig: all is then as it was.
    """
    contents = _contents(config_text, model_files)
    _refuse_used(repository, name, version)
    with _workplace(repository) as work:
        staged = work / str(version)
        manifest = _stage(source, staged, move=move)
        with _locked(repository, name):
            _refuse_used(repository, name, version)
            if repository.has_model(name):
                _add_version(repository, name, staged, contents)
            else:
                _add_model(repository, name, staged, contents)
    if move and source is not None:
        storage.remove_tree(source)
    return manifest


def write_config(repository: ModelRepository, *, name: str, text: str) -> None:
    """Replace config.pbtxt by a text that parses."""
    parse(text)
    with _locked(repository, name):
        repository.existing_model_dir(name)
        storage.write_atomic(repository.config_path(name), text.encode())


def archive_version(repository: ModelRepository, *, name: str, version: int) -> None:
    """Take a version out of service and keep its files."""
    with _locked(repository, name):
        source = repository.existing_version_dir(name, version)
        target = repository.archived_version_dir(name, version)
        if target.exists():
            raise Conflict(f"version {version} of '{name}' is archived already")
        target.parent.mkdir(parents=True, exist_ok=True)
        _rename(source, target)


def restore_version(repository: ModelRepository, *, name: str, version: int) -> None:
    """Bring an archived version back, under its own number."""
    with _locked(repository, name):
        source = repository.archived_version_dir(name, version)
        if not source.is_dir():
            raise NotFound(f"version {version} of '{name}' is not archived")
        repository.existing_model_dir(name)
        if repository.has_version(name, version):
            raise Conflict(f"version {version} of '{name}' is in the repository already")
        _rename(source, repository.version_dir(name, version))


def archived_versions(repository: ModelRepository, name: str) -> list[int]:
    return version_folders(repository.archive / check_name(name))


def delete_archived_version(repository: ModelRepository, *, name: str, version: int) -> None:
    """Remove an archived version's files for good."""
    with _locked(repository, name):
        source = repository.archived_version_dir(name, version)
        if not source.is_dir():
            raise NotFound(f"version {version} of '{name}' is not archived")
        _remove(repository, source)


def delete_model(repository: ModelRepository, *, name: str) -> None:
    """Remove a model with all its versions, archived ones too. It disappears at once, its files a little later."""
    with _locked(repository, name):
        _remove(repository, repository.existing_model_dir(name))
        archived = repository.archive / check_name(name)
        if archived.is_dir():
            _remove(repository, archived)


def remove_leftovers(repository: ModelRepository, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
    """Clear away what killed publications left in staging; the number of folders removed."""
    if not repository.staging.is_dir():
        return 0
    limit = time.time() - older_than_s
    removed = 0
    for entry in repository.staging.iterdir():
        if entry.name.startswith(_PREFIX) and entry.lstat().st_mtime <= limit:
            storage.remove_tree(entry)
            removed += 1
    return removed


@contextlib.contextmanager
def _locked(repository: ModelRepository, name: str) -> Iterator[None]:
    """Hold one model against changes by other processes, for the moment that a rename takes."""
    with storage.locked(repository.staging / _LOCKS / check_name(name), f"model '{name}'"):
        yield


@contextlib.contextmanager
def _workplace(repository: ModelRepository) -> Iterator[Path]:
    """A new folder in staging, gone afterwards."""
    work = repository.staging / f"{_PREFIX}{uuid.uuid4().hex}"
    work.mkdir(parents=True)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _contents(config_text: str | None, model_files: Mapping[str, bytes] | None) -> dict[str, bytes]:
    """Name inside the model's folder -> content of what lies beside the versions."""
    contents: dict[str, bytes] = {}
    for name, content in (model_files or {}).items():
        first = relative_path(name).parts[0]
        if name == CONFIG_FILE or parse_version(first) is not None:
            raise UnsafePath(f"'{name}' cannot lie beside the versions of a model")
        contents[name] = content
    if config_text is not None:
        parse(config_text)
        contents[CONFIG_FILE] = config_text.encode()
    return contents


def _refuse_used(repository: ModelRepository, name: str, version: int) -> None:
    if repository.version_dir(name, version).exists() or repository.archived_version_dir(name, version).exists():
        raise Conflict(f"version {version} of '{name}' exists already; versions are never changed or replaced")


def _stage(source: Path | None, staged: Path, *, move: bool) -> Manifest:
    """Bring the files of a version together, read-only, hashed and flushed to disk."""
    if source is None:
        staged.mkdir()
        return Manifest({})
    needed = storage.tree_size(source)
    linked = move and storage.link_tree(source, staged)
    if not linked:
        storage.ensure_space(staged.parent, needed)
        with storage.full_disk_is_no_space(needed, staged.parent):
            storage.copy_tree(source, staged)
    for name in storage.plain_files(staged):
        (staged / name).chmod(0o444)
    manifest = storage.hash_tree(staged)
    storage.sync_tree(staged)
    return manifest


def _add_model(repository: ModelRepository, name: str, staged: Path, contents: Mapping[str, bytes]) -> None:
    """One rename shows the new model with everything in it."""
    folder = staged.parent / "model"
    folder.mkdir()
    staged.rename(folder / staged.name)
    _write_contents(folder, contents)
    storage.sync_tree(folder)
    repository.root.mkdir(parents=True, exist_ok=True)
    _rename(folder, repository.model_dir(name))


def _add_version(repository: ModelRepository, name: str, staged: Path, contents: Mapping[str, bytes]) -> None:
    _rename(staged, repository.version_dir(name, int(staged.name)))
    _write_contents(repository.model_dir(name), contents)


def _write_contents(folder: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomic(path, content)


def _rename(source: Path, target: Path) -> None:
    """Move a folder to a place that does not exist yet, and flush both places' lists of names."""
    os.rename(source, target)
    storage.sync(target.parent)
    storage.sync(source.parent)


def _remove(repository: ModelRepository, path: Path) -> None:
    """Take a folder out of sight with one rename, then remove its files."""
    with _workplace(repository) as work:
        _rename(path, work / path.name)

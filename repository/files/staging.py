"""Prepares folders out of sight, on the disk of their final place, and moves each to its place by one rename.

A killed process leaves its folder behind as `.publish-*`, which no reader looks into. `remove_leftovers` removes it.
"""

import contextlib
import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from repository.core.errors import Conflict
from repository.core.layout import ModelRepository
from repository.files import storage
from repository.files.progress import Progress

_PREFIX = ".publish-"
LEFTOVER_AGE_S = 60.0  # a younger folder may not be locked yet


@contextlib.contextmanager
def staging_folder(repository: ModelRepository, near: Path) -> Iterator[Path]:
    """Create a folder for the block on the disk of `near`, the root or the archive.

    The folder is in the staging folder if that is on the same disk, and otherwise in `near`. It is removed after the block.
    """
    for folder in (near, repository.staging):
        folder.mkdir(parents=True, exist_ok=True)
    work = (
        repository.staging if storage.same_disk(repository.staging, near) else near
    ) / f"{_PREFIX}{uuid.uuid4().hex}"
    work.mkdir()
    lock = _locked(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int:
    """Lock a folder. Return a descriptor that keeps the lock until it is closed. Raises BlockingIOError if it is locked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def remove_leftovers(repository: ModelRepository, *, older_than_s: float = LEFTOVER_AGE_S) -> int:
    """Remove the folders that killed processes have left behind. Return their number."""
    limit = time.time() - older_than_s
    removed = 0
    for place in {repository.staging, repository.root, repository.archive}:
        for entry in place.glob(f"{_PREFIX}*"):
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                if entry.lstat().st_mtime <= limit:
                    _remove_unheld(entry)
                    removed += 1
    return removed


def _remove_unheld(folder: Path) -> None:
    lock = _locked(folder)
    try:
        storage.remove_tree(folder)
    finally:
        os.close(lock)


def rename(source: Path, target: Path) -> None:
    """Move a folder to a new place on its disk, and flush both parent folders."""
    os.rename(source, target)
    storage.sync(target.parent)
    storage.sync(source.parent)


def copied(repository: ModelRepository, source: Path, work: Path, progress: Progress) -> Path:
    """Return a flushed copy of a folder in `work`. Raises NoSpace, before it writes, if the copy does not fit."""
    size = storage.tree_size(source)
    storage.ensure_space(work, size, repository.reserve)
    progress.plan(2 * size)
    progress.step("Copying to another disk")
    copy = work / source.name
    with storage.full_disk_is_no_space(size, work):
        storage.copy_tree(source, copy, progress)
    progress.step("Flushing to the disk")
    storage.sync_tree(copy, progress)
    return copy


def same_content(one: Path, other: Path, what: str) -> None:
    """Raise Conflict unless two folders have the same files, as after an interrupted move between disks."""
    if storage.hash_tree(one) != storage.hash_tree(other):
        raise Conflict(f"{what} is in the repository and in the archive, with different files; remove one by hand")


def remove(repository: ModelRepository, path: Path, near: Path) -> None:
    """Hide a folder below `near` (the root or the archive) with one rename, then remove its files."""
    with staging_folder(repository, near) as work:
        rename(path, work / path.name)

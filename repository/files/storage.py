"""Complete files or none: hashing, flushing to disk, atomic writes, free space, locks."""

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from repository.core.errors import Conflict, NoSpace, UnsafePath
from repository.core.layout import relative_path
from repository.files.progress import SILENT, Progress

# Left free on a disk for databases and logs: this much, or 5 % where that is less.
MOST_RESERVE_BYTES = 1 << 30
_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FileEntry(NamedTuple):
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a folder: relative name -> size and SHA-256, and one SHA-256 over all of them."""

    files: dict[str, FileEntry]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())

    @property
    def sha256(self) -> str:
        """Return the SHA-256 over the lines "<sha256>  <name>\\n" sorted by name, as `sha256sum` writes them."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(f"{self.files[name].sha256}  {name}\n".encode())
        return digest.hexdigest()


def hash_file(path: Path, progress: Progress = SILENT) -> FileEntry:
    """Return size and SHA-256 of a file, read in bounded memory."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
            progress.advance(len(chunk))
    return FileEntry(size, digest.hexdigest())


def plain_files(folder: Path) -> list[str]:
    """Return the relative names of all files below a folder, sorted; UnsafePath for a link, a device or an odd name."""
    names: list[str] = []
    for directory, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(directory, name)
            mode = path.lstat().st_mode
            relative = path.relative_to(folder).as_posix()
            relative_path(relative)
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UnsafePath(f"'{relative}' is neither a file nor a folder")
            if stat.S_ISREG(mode):
                names.append(relative)
    return sorted(names)


def hash_tree(folder: Path, progress: Progress = SILENT) -> Manifest:
    """Return the manifest of a folder of plain files."""
    return Manifest({name: hash_file(folder / name, progress) for name in plain_files(folder)})


def sync_tree(folder: Path, progress: Progress = SILENT) -> None:
    """Flush every file and folder below, and the folder itself, to the disk."""
    for directory, _, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(directory, name)
            sync(path)
            progress.advance(path.stat().st_size)
        sync(Path(directory))


def sync(path: Path) -> None:
    """Flush one file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file's content: a reader sees the old or the new one, also after a power cut. Conflict for a folder."""
    if path.is_dir():
        raise Conflict(f"'{path.name}' is a folder, where a file belongs; move it away by hand")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with full_disk_is_no_space(len(content), path.parent):
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def reserve(path: Path, size: int) -> None:
    """Reserve `size` bytes, with which `write_reserved` can replace the file even on a full disk. NoSpace."""
    reserved = _reserved(path)
    if reserved.exists() and reserved.stat().st_size >= size:
        return
    write_atomic(reserved, bytes(size))  # zeros, because a sparse file has no room of its own


def write_reserved(path: Path, content: bytes) -> None:
    """Replace a file's content as write_atomic does, using up the room that was reserved for it."""
    reserve(path, len(content))
    reserved = _reserved(path)
    with reserved.open("r+b") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    reserved.replace(path)
    sync(path.parent)


def _reserved(path: Path) -> Path:
    return path.with_name(f".{path.name}.reserved")


def copy_tree(source: Path, destination: Path, progress: Progress = SILENT) -> None:
    """Copy a folder of plain files into a new folder."""
    names = plain_files(source)
    destination.mkdir(parents=True)
    for name in names:
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        _copy_file(source / name, target, progress)


def _copy_file(source: Path, target: Path, progress: Progress) -> None:
    """Copy one file with its time and mode."""
    with source.open("rb") as reader, target.open("xb") as writer:
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
            progress.advance(len(chunk))
    shutil.copystat(source, target)


def same_disk(one: Path, other: Path) -> bool:
    """Return whether renames and hard links work between two folders."""
    return one.stat().st_dev == other.stat().st_dev


def link_tree(source: Path, destination: Path) -> int:
    """Hard-link a folder's files into a new folder on the same disk, which takes no space; return their bytes."""
    names = plain_files(source)
    destination.mkdir()
    for name in names:
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source / name, target)
    return sum((destination / name).stat().st_size for name in names)


def tree_size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum((folder / name).stat().st_size for name in plain_files(folder))


def ensure_space(folder: Path, needed: int, reserve: int | None = None) -> None:
    """Raise NoSpace unless `needed` bytes fit where `folder` is, or will be made, with `reserve` bytes left free.

    reserve: None is MOST_RESERVE_BYTES, or 5 % of the disk where that is less.
    """
    total, _, free = disk_usage(folder)
    kept = min(MOST_RESERVE_BYTES, total // 20) if reserve is None else reserve
    if needed + kept > free:
        raise NoSpace(needed, max(free - kept, 0), kept)


def disk_usage(folder: Path) -> tuple[int, int, int]:
    """Return the bytes in all, used and free of the disk where `folder` is, or will be made."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder)


@contextlib.contextmanager
def full_disk_is_no_space(needed: int, folder: Path) -> Iterator[None]:
    """Turn the system's "no space left" and "quota exceeded" into NoSpace."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise NoSpace(needed, disk_usage(folder)[2]) from error
        raise


def remove_tree(path: Path) -> None:
    """Remove a folder, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


@contextlib.contextmanager
def locked(path: Path, what: str, *, wait_s: float = 10.0) -> Iterator[None]:
    """Hold a lock file for the block; Conflict where another holds it for `wait_s`. A process that dies frees it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for_lock(descriptor, what, time.monotonic() + wait_s)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, what: str, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise Conflict(f"{what} is being changed by someone else; try again in a moment") from None
        time.sleep(0.02)

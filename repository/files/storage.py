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
from typing import IO, NamedTuple

from repository.core.errors import Conflict, NoSpace, UnsafePath
from repository.core.layout import relative_path
from repository.files.progress import SILENT, Progress

# The bytes to leave free on a disk for databases and logs; 5 % of the disk if that is less.
MOST_RESERVE_BYTES = 1 << 30
_CHUNK = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


class FileEntry(NamedTuple):
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of a folder: relative name -> size and SHA-256, and one SHA-256 over all files."""

    files: dict[str, FileEntry]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the lines "<sha256>  <name>\\n" sorted by name, in the form that `sha256sum` writes."""
        digest = hashlib.sha256()
        for name in sorted(self.files):
            digest.update(f"{self.files[name].sha256}  {name}\n".encode())
        return digest.hexdigest()


def hash_file(path: Path, progress: Progress = SILENT) -> FileEntry:
    """Return the size and SHA-256 of a file, with bounded memory."""
    with path.open("rb") as file:
        return hash_stream(file, progress)


def hash_stream(file: IO[bytes], progress: Progress = SILENT) -> FileEntry:
    """Return the size and SHA-256 of the rest of an open file."""
    digest = hashlib.sha256()
    size = 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        progress.advance(len(chunk))
    return FileEntry(size, digest.hexdigest())


def plain_files(folder: Path) -> list[str]:
    """Return the sorted relative names of all files below a folder.

    Raises UnsafePath if one is a link or a device, or has a name that is not a plain relative path.
    """
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
    """Flush a folder, and every file and folder below it, to the disk."""
    for directory, _, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(directory, name)
            sync(path)
            progress.advance(path.stat().st_size)
        sync(Path(directory))


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace the content of a file. A reader sees the old or the new content, also after a power cut. Raises Conflict if
    the path is a folder."""
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
    """Reserve `size` bytes, so that `write_reserved` can replace the file even on a full disk. Raises NoSpace."""
    reserved = _reserved(path)
    if reserved.exists() and reserved.stat().st_size >= size:
        return
    write_atomic(reserved, bytes(size))  # written zeros, because a sparse file occupies no space


def write_reserved(path: Path, content: bytes) -> None:
    """Replace the content of a file as write_atomic does, in the space that was reserved for the file."""
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
    """Return whether two folders are on one disk, so that renames and hard links work between them."""
    return one.stat().st_dev == other.stat().st_dev


def link_tree(source: Path, destination: Path) -> int:
    """Hard-link the files of a folder into a new folder on the same disk, without copies. Return the sum of their sizes."""
    names = plain_files(source)
    destination.mkdir()
    for name in names:
        target = destination / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(source / name, target)
    return sum((destination / name).stat().st_size for name in names)


def tree_size(folder: Path) -> int:
    """Return the sum of the sizes of all files below a folder."""
    return sum((folder / name).stat().st_size for name in plain_files(folder))


def ensure_space(folder: Path, needed: int, reserve: int | None = None) -> None:
    """Raise NoSpace unless `needed` bytes fit on the disk of `folder`, which need not exist, with `reserve` bytes left free.

    reserve: by default MOST_RESERVE_BYTES, or 5 % of the disk if that is less.
    """
    total, _, free = disk_usage(folder)
    kept = min(MOST_RESERVE_BYTES, total // 20) if reserve is None else reserve
    if needed + kept > free:
        raise NoSpace(needed, max(free - kept, 0), kept)


def disk_usage(folder: Path) -> tuple[int, int, int]:
    """Return the total, used and free bytes of the disk of `folder`, which need not exist."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder)


@contextlib.contextmanager
def full_disk_is_no_space(needed: int, folder: Path) -> Iterator[None]:
    """Turn the system errors "no space left" and "quota exceeded" into NoSpace."""
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
    """Hold a lock file for the block. Raises Conflict if it is not free within `wait_s`. A process that ends frees its lock."""
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

"""Unpacks zip files of clients (a .mar is a zip file). No entry can leave the folder, and none can fill the disk."""

import stat
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from repository.core.errors import UnsafeArchive, UnsafePath
from repository.core.layout import relative_path
from repository.files import storage
from repository.files.zip_reading import opened_zip

_CHUNK = 1 << 20
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError, ValueError)
# LZMA is missing, because each entry may demand a dictionary of 4 GiB.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_SMALL = 16 << 20  # below this size, a high compression ratio does no harm


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits for one archive. Sizes in bytes."""

    max_files: int = 10_000
    max_bytes: int = 64 << 30
    max_ratio: int = 200  # the largest ratio of unpacked to packed bytes, over the whole archive
    reserve: int | None = None  # the bytes to leave free on the disk, see storage.ensure_space


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    is_dir: bool
    size: int  # the size that the archive declares


def extract(path: Path, destination: Path, limits: Limits | None = None) -> list[str]:
    """Unpack into `destination`, a folder that does not exist yet. Return the sorted names of the unpacked files.

    Raises UnsafeArchive if the archive is damaged or exceeds its limits, or if an entry is a link or a device. A name that is
    absolute, contains ".." or appears twice raises UnsafeArchive, too. Raises NoSpace if the disk would become full. An error
    leaves nothing behind.
    """
    destination.mkdir(parents=True)
    try:
        with storage.full_disk_is_no_space(0, destination):
            _extract_zip(path, destination, limits or Limits())
    except _DAMAGED as error:
        storage.remove_tree(destination)
        raise UnsafeArchive("the file is not a zip archive, or a damaged one") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        storage.remove_tree(destination)
        raise UnsafeArchive("the archive uses one name for a file and a folder") from error
    except BaseException:
        storage.remove_tree(destination)
        raise
    return storage.plain_files(destination)


def check_bounds(infos: list[zipfile.ZipInfo], packed_bytes: int, limits: Limits) -> int:
    """Return the declared bytes of all entries of a zip archive. Raises UnsafeArchive as `extract` does."""
    entries = [_zip_entry(info) for info in infos]
    seen: set[str] = set()
    for entry in entries:
        name = _safe_name(entry)
        if name in seen and not entry.is_dir:
            raise UnsafeArchive(f"'{name[:80]}' is in the archive twice")
        seen.add(name)
    total = sum(entry.size for entry in entries)
    if total > limits.max_bytes:
        raise UnsafeArchive(f"the archive holds more than {limits.max_bytes >> 20} MiB")
    if total > _SMALL and total > limits.max_ratio * max(packed_bytes, 1):
        times = total // max(packed_bytes, 1)
        raise UnsafeArchive(f"the archive unpacks to {times} times its size; at most {limits.max_ratio} is allowed")
    return total


def _extract_zip(path: Path, destination: Path, limits: Limits) -> None:
    with opened_zip(path, limits.max_files) as archive:
        infos = archive.infolist()
        budget = check_bounds(infos, path.stat().st_size, limits)
        storage.ensure_space(destination, budget, limits.reserve)
        for info, entry in zip(infos, map(_zip_entry, infos), strict=True):
            if not entry.is_dir:
                with archive.open(info) as source:
                    budget -= _write(source, destination / entry.name, budget)


def _zip_entry(info: zipfile.ZipInfo) -> _Entry:
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UnsafeArchive(f"'{info.filename[:80]}' is a link or a device; only files and folders are unpacked")
    if info.flag_bits & 0x1:
        raise UnsafeArchive(f"'{info.filename[:80]}' is encrypted")
    if info.compress_type not in _METHODS:
        raise UnsafeArchive(
            f"'{info.filename[:80]}' is packed by a method that is not taken: pack the archive by Deflate"
        )
    return _Entry(info.filename, info.is_dir(), info.file_size)


def _safe_name(entry: _Entry) -> str:
    name = entry.name.rstrip("/") if entry.is_dir else entry.name
    if entry.is_dir and name in ("", "."):
        return name
    try:
        relative_path(name)
    except UnsafePath:
        raise UnsafeArchive(f"'{name[:80]}' in the archive is not a plain relative file name") from None
    return name


def _write(source: IO[bytes], target: Path, budget: int) -> int:
    """Unpack one file, and return its size. Raises UnsafeArchive if the file has more than `budget` bytes."""
    target.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with target.open("xb") as file:
        while chunk := source.read(_CHUNK):
            written += len(chunk)
            if written > budget:
                raise UnsafeArchive("the archive holds more than it says")
            file.write(chunk)
    return written

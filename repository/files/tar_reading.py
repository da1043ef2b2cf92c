"""Reads tar files, compressed or not, with limits on the memory and time for their headers.

`tarfile` reads the whole header before an entry: long names, attributes, the map of a sparse file. A header may claim any
size, and one kilobyte of a compressed file may unpack to a megabyte of header. `tarfile` keeps all headers, searches the
attributes in quadratic time before Python 3.11.10, and follows a negative size backwards. So this module reads the attributes
itself, and keeps only those that matter for unpacking. Source: POSIX.1-2001, pax ("pax Extended Header").
"""

import bz2
import gzip
import io
import lzma
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from repository.core.errors import UnsafeArchive

MAX_HEADER_BYTES = 1 << 20  # the limit for all headers of one entry
_MAX_NAME = 4096  # the longest path in Linux
_RECORD_LENGTH = re.compile(rb"([0-9]{1,7}) ")
_SIZE = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"-?[0-9]{1,12}(\.[0-9]{0,40})?")
_UNPACKERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ", lzma.open))


class TarReader:
    """An open tar file, read one entry after the other. `members` may be called once."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = _HeaderBoundedFile(file)
        with self._file.reading_headers():
            self._tar = tarfile.TarFile(fileobj=self._file, tarinfo=_Entry)

    def members(self) -> Iterator[tarfile.TarInfo]:
        """Yield each entry. Raises UnsafeArchive if headers are too long, tarfile.TarError if the file is no tar file."""
        while True:
            with self._file.reading_headers():
                member = self._tar.next()
            if member is None:
                return
            self._tar.members.clear()  # type: ignore[attr-defined]  # the caller keeps the entries that it needs
            if max(len(member.name), len(member.linkname)) > _MAX_NAME:
                raise UnsafeArchive(f"'{member.name[:80]}' in the archive has a name that is too long")
            yield member

    def content(self, member: tarfile.TarInfo) -> IO[bytes]:
        """Open the content of an entry that is a plain file."""
        source = self._tar.extractfile(member)
        assert source is not None
        return source


@contextmanager
def opened_tar(path: Path) -> Iterator[TarReader]:
    """Open a tar file, plain or compressed by gzip, bzip2 or xz. Raises the errors of `TarReader.members`."""
    with path.open("rb") as file:
        begins = file.read(6)
    unpacker = next((unpacker for magic, unpacker in _UNPACKERS if begins.startswith(magic)), None)
    try:
        with unpacker(path, "rb") if unpacker is not None else path.open("rb") as source:
            yield TarReader(source)
    except RecursionError:  # `tarfile` calls itself for each header that describes the next header
        raise UnsafeArchive("an entry of the archive has too many headers") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise tarfile.ReadError(str(error)) from error  # an error of the decompressor, not of the disk


class _Entry(tarfile.TarInfo):
    """An entry, with only those attributes that matter for unpacking."""

    def _proc_member(self, tar: tarfile.TarFile) -> tarfile.TarInfo:  # the hook of `tarfile` for subclasses
        if self.size < 0:
            raise tarfile.ReadError("an entry has a negative size")
        if self.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE):
            return self._described(tar)
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise _sparse(self.name)
        return super()._proc_member(tar)  # type: ignore[misc, no-any-return]  # missing in the stubs

    def _described(self, tar: tarfile.TarFile) -> tarfile.TarInfo:
        """Return the next entry, with these attributes applied. Global attributes, which name no entry, are dropped."""
        file = tar.fileobj
        assert file is not None
        attributes = _attributes(file.read(self.size + -self.size % tarfile.BLOCKSIZE)[: self.size])
        try:
            entry = self.fromtarfile(tar)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if self.type != tarfile.XGLTYPE:
            entry.offset = self.offset
            _apply(attributes, entry, tar)
        return entry


def _attributes(body: bytes) -> dict[str, str]:
    """Return the records of an extended header. Raises tarfile.ReadError if records are malformed."""
    found: dict[str, str] = {}
    at = 0
    while at < len(body) and body[at]:
        begin = _RECORD_LENGTH.match(body, at)
        end = at + int(begin[1]) if begin else 0
        key, equals, value = body[begin.end() if begin else 0 : end].partition(b"=")
        if end > len(body) or not equals or not value.endswith(b"\n"):
            raise tarfile.ReadError("the attributes of an entry are damaged")
        found[key.decode(errors="surrogateescape")] = value[:-1].decode(errors="surrogateescape")
        at = end
    return found


def _apply(attributes: dict[str, str], entry: tarfile.TarInfo, tar: tarfile.TarFile) -> None:
    if any(key.startswith("GNU.sparse.") for key in attributes):
        raise _sparse(entry.name)
    entry.name = attributes.get("path", entry.name).rstrip("/")
    entry.linkname = attributes.get("linkpath", entry.linkname)
    if _TIME.fullmatch(attributes.get("mtime", "")):
        entry.mtime = float(attributes["mtime"])
    if "size" in attributes:
        if not _SIZE.fullmatch(attributes["size"]):
            raise tarfile.ReadError("an entry has no size")
        entry.size = int(attributes["size"])
        has_content = entry.isreg() or entry.type not in tarfile.SUPPORTED_TYPES
        behind = entry.size + -entry.size % tarfile.BLOCKSIZE if has_content else 0
        tar.offset = entry.offset_data + behind  # the offset of the next entry


def _sparse(name: str) -> UnsafeArchive:
    return UnsafeArchive(f"'{name[:80]}' in the archive is a sparse file: pack it without --sparse")


class _HeaderBoundedFile(io.BufferedIOBase):
    """A file that returns at most MAX_HEADER_BYTES while the headers of one entry are read."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file
        self._left: int | None = None

    @contextmanager
    def reading_headers(self) -> Iterator[None]:
        self._left = MAX_HEADER_BYTES
        try:
            yield
        finally:
            self._left = None

    def read(self, size: int | None = -1, /) -> bytes:
        if self._left is not None:
            wanted = -1 if size is None else size
            if not 0 <= wanted <= self._left:
                raise UnsafeArchive(f"an entry of the archive has headers of more than {MAX_HEADER_BYTES >> 20} MiB")
            self._left -= wanted
        return self._file.read(-1 if size is None else size)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

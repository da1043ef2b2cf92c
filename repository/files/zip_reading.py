"""Opens zip files, and checks their table of contents before `zipfile` reads that table.

`zipfile` creates objects of 600 bytes for each entry of the table, so that a file of 50 MB with a million entries takes half a
gigabyte. The number of entries at the end of the file is no limit, because `zipfile` reads the whole table. So this module
limits the length of the table before it is read. It also counts the entries and measures their extra fields, which `zipfile`
reads in quadratic time, before an entry becomes an object.
"""

import io
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repository.core.errors import UnsafeArchive

MAX_ENTRIES = 100_000  # the default limit: a model of PyTorch has an entry for each weight
_ENTRY_BYTES = 1024  # the largest average size of an entry of the table
_SIGNATURE = b"PK\1\2"  # the first bytes of each entry of the table
_EXTRA_BYTES = 4096  # the largest extra field of one entry; programs write some dozen bytes
_FIXED_BYTES = 46  # the bytes of an entry before its name, extra field and comment; their lengths are at byte 28


@contextmanager
def opened_zip(path: Path, max_entries: int = MAX_ENTRIES) -> Iterator[zipfile.ZipFile]:
    """Open a zip file. Raises UnsafeArchive if it has too many entries, or else the errors of `zipfile.ZipFile`."""
    with (
        _CountedFile(path, max_entries) as counted,
        zipfile.ZipFile(counted) as archive,
        io.BufferedReader(counted.raw) as file,
    ):
        archive.fp = file  # the table has been read, so that later reads need no count
        yield archive


class _CountedFile(io.BufferedReader):
    """A file that raises UnsafeArchive if its table of contents has more entries than allowed."""

    def __init__(self, path: Path, max_entries: int) -> None:
        super().__init__(io.FileIO(path))
        self._max_entries = max_entries

    def read(self, size: int | None = -1, /) -> bytes:
        if (size or 0) > max(self._max_entries * _ENTRY_BYTES, 1 << 16):
            raise self._too_many()
        data = super().read(size)
        for count, extra in enumerate(_extra_lengths(data), 1):
            if count > self._max_entries:
                raise self._too_many()
            if extra > _EXTRA_BYTES:
                raise UnsafeArchive(f"an entry of the archive has extra fields of more than {_EXTRA_BYTES >> 10} KiB")
        return data

    def _too_many(self) -> UnsafeArchive:
        return UnsafeArchive(f"the archive holds more than {self._max_entries} files")


def _extra_lengths(table: bytes) -> Iterator[int]:
    """Yield the length of the extra fields of each entry at the beginning of `table`, a table of contents."""
    at = 0
    while table.startswith(_SIGNATURE, at) and at + _FIXED_BYTES <= len(table):
        lengths = struct.unpack_from("<HHH", table, at + 28)
        yield lengths[1]
        at += _FIXED_BYTES + sum(lengths)

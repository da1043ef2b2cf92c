"""Opening zip files whose table of contents is looked at before it is taken in.

For each entry of that table `zipfile` makes objects of 600 bytes, so that a file of 50 MB, with a million entries, takes half a
gigabyte. What the end of the file says of their number binds nobody: `zipfile` reads as many as the table holds. So the table
is bounded by its length before it is read, and its entries are counted before one of them becomes an object. So are their extra
fields measured, which `zipfile` reads in quadratic time.
"""

import io
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repository.core.errors import UnsafeArchive

MAX_ENTRIES = 100_000  # of what no limit is given for: a model of PyTorch has an entry for each weight
_ENTRY_BYTES = 1024  # that an entry of the table has, on average, at most
_SIGNATURE = b"PK\1\2"  # with which each entry begins
_EXTRA_BYTES = 4096  # of one entry: programs write some dozens there
_FIXED_BYTES = 46  # before its name, extra field and comment, whose lengths stand at 28


@contextmanager
def opened_zip(path: Path, max_entries: int = MAX_ENTRIES) -> Iterator[zipfile.ZipFile]:
    """Open a zip file. UnsafeArchive where it has too many entries; else raises as `zipfile.ZipFile`."""
    with _CountedFile(path, max_entries) as file, zipfile.ZipFile(file) as archive:
        file.table_is_read = True
        yield archive


class _CountedFile(io.BufferedReader):
    """A file that refuses to hand out a table of contents with more entries than allowed."""

    def __init__(self, path: Path, max_entries: int) -> None:
        super().__init__(io.FileIO(path))
        self.table_is_read = False
        self._max_entries = max_entries

    def read(self, size: int | None = -1, /) -> bytes:
        if self.table_is_read:
            return super().read(size)
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
    """Yield the length of the extra fields of each entry at the beginning of some bytes."""
    at = 0
    while table.startswith(_SIGNATURE, at) and at + _FIXED_BYTES <= len(table):
        lengths = struct.unpack_from("<HHH", table, at + 28)
        yield lengths[1]
        at += _FIXED_BYTES + sum(lengths)

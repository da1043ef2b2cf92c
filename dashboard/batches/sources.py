"""The files that batch jobs read without an upload: of folders and of prefixes of buckets that an administrator allows.

A file is copied before its rows are read, because it may change while the job runs.
"""

import io
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from django.conf import settings

from dashboard.batches.formats.table import SUFFIXES, format_of
from dashboard.models import BatchFile
from dashboard.shared.exceptions import Invalid, NotFound
from dashboard.shared.repository_errors import repository_errors
from dashboard.uploads.sources.base import SourceFile
from dashboard.uploads.sources.bucket import bucket_files, refuse_other_bucket
from dashboard.uploads.sources.folder import allowed_path, is_allowed, opened_inside
from repository.files import storage
from repository.remote.address import is_remote
from repository.remote.single_object import opened

MOST_FILES = 1000
_CHUNK = 1 << 20


@repository_errors()
def source_files(source: str) -> list[SourceFile]:
    """Return the files of a source, in the order of their names.

    source: the path of a file or folder, or the address of an object or prefix. Raises Forbidden if it is not allowed, Invalid
    if it has no file of a known format, or files of several formats.
    """
    found = bucket_files(source) if is_remote(source) else _files(source)
    rows = sorted(row for row in found if row.name.lower().endswith(SUFFIXES))
    if not rows:
        raise Invalid(f"there is no file there that ends in {', '.join(SUFFIXES)}")
    if len(rows) > MOST_FILES:
        raise Invalid(f"there are {len(rows)} files there, and a batch job has at most {MOST_FILES}")
    if len({format_of(row.name) for row in rows}) > 1:
        raise Invalid("the files there have several formats: name a file, or a folder with files of one format")
    return rows


@contextmanager
def source_head(source: str, file: BatchFile) -> Iterator[IO[bytes]]:
    """Yield a file of a source, of which a preview reads the beginning, and of Parquet the end, which describes it."""
    with _source_opened(source, file.name) as opened_file:
        yield opened_file


def source_copy(source: str, file: BatchFile, target: Path) -> None:
    """Copy a file of a source. Raises Invalid if it is not as long as it was, NoSpace if the disk is full."""
    storage.ensure_space(target.parent, file.size, settings.DISK_RESERVE_BYTES)
    with (
        storage.full_disk_is_no_space(file.size, target.parent),
        target.open("wb") as copy,
        _source_opened(source, file.name) as opened_file,
    ):
        shutil.copyfileobj(opened_file, copy, _CHUNK)
    if target.stat().st_size != file.size:
        raise Invalid(f"'{file.name}' has changed since the batch job was made; make it again")


@contextmanager
def _source_opened(source: str, name: str) -> Iterator[IO[bytes]]:
    if is_remote(source):
        refuse_other_bucket(source)
        with (
            repository_errors(),
            opened(source if source.endswith(f"/{name}") else f"{source.rstrip('/')}/{name}") as found,
        ):
            yield io.BufferedReader(cast("io.RawIOBase", found[0]))  # for readline with a size
    else:
        path = allowed_path(source)
        with ExitStack() as stack:
            try:
                file = stack.enter_context(opened_inside(path / name if path.is_dir() else path))
            except OSError as error:
                raise NotFound(
                    f"'{name}' cannot be read any more: {error.strerror}; continue when it is there again"
                ) from None
            yield file


def _files(source: str) -> list[SourceFile]:
    path = allowed_path(source)
    try:
        if path.is_file():
            return [SourceFile(path.name, path.stat().st_size)]
        inside = [one for one in path.iterdir() if one.is_file() and is_allowed(one)]
        return [SourceFile(one.name, one.stat().st_size) for one in inside]
    except FileNotFoundError:
        raise NotFound(f"there is no file or folder '{path.name}' there") from None
    except OSError as error:
        raise Invalid(f"'{path.name}' cannot be read: {error.strerror}") from None

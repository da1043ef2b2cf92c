"""Chunks of a file that arrive one after the other, and can be sent again after a broken connection."""

import contextlib
import hashlib
import os
from pathlib import Path

from django.conf import settings

from dashboard.shared.exceptions import Conflict, Invalid, StorageFull, TooLarge, WrongOffset
from repository.core.errors import NoSpace
from repository.files import storage


def check(chunk: bytes, sha256: str) -> None:
    """Raise TooLarge or Invalid if a chunk is too large, or its hash is not `sha256`, unless that is ""."""
    if len(chunk) > settings.UPLOAD_CHUNK_BYTES:
        raise TooLarge(f"a chunk has at most {settings.UPLOAD_CHUNK_BYTES} bytes, this one has {len(chunk)}")
    if sha256 and hashlib.sha256(chunk).hexdigest() != sha256.lower():
        raise Invalid("the chunk's SHA-256 is not the one that was sent with it; send the chunk again")


def append(path: Path, chunk: bytes, offset: int, *, received: int, size: int) -> None:
    """Write at `offset`, over the bytes of a failed attempt; a full disk changes nothing.

    received, size: the bytes that have arrived, and those that were announced. Raises WrongOffset, with the right offset.
    """
    if offset != received:
        raise WrongOffset(received, offset)
    if offset + len(chunk) > size:
        raise Invalid(f"the file was announced with {size} bytes, but more arrive")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise Conflict("the folder of this upload is gone; cancel this upload and begin again") from None
    try:
        if os.fstat(descriptor).st_size < offset:
            raise Conflict("the file on disk is shorter than what was received; cancel this upload and begin again")
        storage.ensure_space(path.parent, len(chunk), settings.DISK_RESERVE_BYTES)
        with storage.full_disk_is_no_space(len(chunk), path.parent):
            os.ftruncate(descriptor, offset)
            _write_all(descriptor, offset, chunk)
    except NoSpace as error:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, offset)
        raise StorageFull(
            f"the disk is full: {error.message}; the upload can be continued when there is room"
        ) from None
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, offset: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written

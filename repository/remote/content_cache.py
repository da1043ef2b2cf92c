"""Content of objects in the cloud on disk, for all servers of a machine.

<folder>/objects/<SHA-256>          content, read-only; the files of models are hard links to it
<folder>/index/<key>                the SHA-256 of the content that a store had under this key
<folder>/parts/<key>                a download; the process that has its lock continues it, others wait
<folder>/listed/<repository>/<model>  what the copy of a model was made of, and `<repository>.names`: the models listed last

Content is hashed when it is downloaded and when a process first uses it, because a disk, another program or a model may have
changed it meanwhile; until the process ends, its size, time and inode stand for the hash.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from repository.core.errors import NoSpace, Unreachable

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 << 20
PART_KEPT_S = 7 * 86400.0  # how long a broken download waits for the process that continues it
PLACE_ATTEMPTS = 3


class WrongContent(Unreachable):
    """Raised when the store gives content whose hash is not the wanted one."""


# Reads the content from this byte on, in chunks. Raises RepositoryError.
Read = Callable[[int], Iterator[bytes]]


class ContentCache:
    """Methods block: they read and write files, and wait for the download of another process."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        """limit: the bytes up to which content that no model uses is kept. None: no content is kept for a later use."""
        self._folder = folder
        self._limit = limit
        self._objects, self._index, self._parts = (folder / name for name in ("objects", "index", "parts"))
        for one in (self._objects, self._index, self._parts):
            one.mkdir(parents=True, exist_ok=True)
        self._verified: set[tuple[str, int, int]] = set()  # SHA-256, inode, time of change in ns
        self._room = 0  # bytes that fit without another look at the disk

    # -- content -----------------------------------------------------------------------------------------------------
    def has(self, key: str) -> bool:
        """Return whether the content of this key needs no download, without a look at its hash."""
        return (self._objects / (self._hash_of(key) or "none")).exists()

    def place(self, target: Path, key: str, size: int, read: Read, sha256: str = "") -> None:
        """Make a file with the content of an object, downloaded unless the cache has it. A broken download is continued.

        key: a name that the store never gives to other content; "" if there is none. sha256: the hash that the content must
        have, or "". Raises Unreachable if the content that arrives is not the one that was listed, and OSError for the disk.
        """
        if self._limit is None:
            self._receive(key, size, read, sha256, target)
            return
        for attempt in range(PLACE_ATTEMPTS):
            try:
                self._link(self._find(key) or self._receive(key, size, read, sha256), target)
                break
            except FileNotFoundError:  # another process made room for itself in this moment
                if attempt == PLACE_ATTEMPTS - 1:
                    raise

    def make_room(self, needed: int) -> None:
        """Delete content that no model uses, least recently used first, until so many bytes fit. Raises NoSpace."""
        if needed <= self._room:
            self._room -= needed
            return
        with _locked(self._folder / "lock"):
            self._delete_old_parts()
            total, unused = self._contents()
            free = shutil.disk_usage(self._folder).free
            possible = free + sum(size for _, size, _ in unused)
            if needed > possible:
                raise NoSpace(needed, possible)
            limit = free if self._limit is None else self._limit
            for _, size, path in unused:
                if total + needed <= limit and needed <= free:
                    break
                path.unlink(missing_ok=True)
                total, free = total - size, free + size
            self._delete_dangling()
        # Others write here too, so only a part of the room is taken for granted.
        self._room = max(0, min(limit - total, free) - needed) // 4

    def _find(self, key: str) -> str:
        """Return the SHA-256 of the content of this key, or "" if the cache does not have it unchanged."""
        digest = self._hash_of(key)
        if not digest:
            return ""
        path = self._objects / digest
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                known = (digest, status.st_ino, status.st_mtime_ns)
                if known not in self._verified:
                    if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        log.warning("content %s in the cache of models is damaged: it is copied again", digest[:12])
                        path.unlink(missing_ok=True)
                        return ""
                    self._verified.add(known)
        except FileNotFoundError:
            return ""
        return digest

    def _hash_of(self, key: str) -> str:
        if key.startswith(SHA256):
            return key.removeprefix(SHA256)
        try:
            return (self._index / key).read_text() if key else ""
        except FileNotFoundError:
            return ""

    def _receive(self, key: str, size: int, read: Read, sha256: str, target: Path | None = None) -> str:
        """Download content, or wait until another process has. Return its SHA-256. target: the file to make, if not one in the
        cache."""
        part = self._parts / (key.removeprefix(SHA256) or uuid.uuid4().hex)
        with _locked(part) as file:
            if found := self._find(key):
                part.unlink()
                return found
            digest = _fill(file, size, read)
            if sha256 not in ("", digest):
                part.unlink()
                raise WrongContent(f"the content with SHA-256 {sha256[:12]}… has another hash in the store")
            os.fchmod(file.fileno(), 0o444)
            status = os.fstat(file.fileno())
            part.replace(target or self._objects / digest)
            self._verified.add((digest, status.st_ino, status.st_mtime_ns))
        if key and not target and not key.startswith(SHA256):
            _write(self._index / key, digest)
        return digest

    def _link(self, digest: str, target: Path) -> None:
        source = self._objects / digest
        status = source.stat()
        with contextlib.suppress(PermissionError):  # content that another user downloaded
            os.utime(source, ns=(time.time_ns(), status.st_mtime_ns))  # the time of its last use
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EXDEV):
                raise
            shutil.copyfile(source, target)  # a file system without hard links

    # -- room --------------------------------------------------------------------------------------------------------
    def _contents(self) -> tuple[int, list[tuple[int, int, Path]]]:
        """Return the bytes of all content, and (time of last use, size, path) of what no model uses, oldest first."""
        total, unused = 0, []
        for path in self._objects.iterdir():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                total += status.st_size
                if status.st_nlink == 1:
                    unused.append((status.st_atime_ns, status.st_size, path))
        return total, sorted(unused)

    def _delete_old_parts(self) -> None:
        for part in self._parts.iterdir():
            with contextlib.suppress(OSError), part.open("rb") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > PART_KEPT_S:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink()

    def _delete_dangling(self) -> None:
        """Delete the entries of the index whose content is gone."""
        there = {path.name for path in self._objects.iterdir()}
        for entry in self._index.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if entry.suffix != ".new" and entry.read_text() not in there:
                    entry.unlink()

    # -- listings ----------------------------------------------------------------------------------------------------
    def keep_names(self, repository: str, names: list[str]) -> None:
        """Keep which models a repository has, and drop the kept listings of all others."""
        if self._limit is None:
            return
        folder = self._folder / "listed" / repository
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder.with_suffix(".names"), json.dumps(names))
        for path in folder.iterdir():
            if path.suffix != ".new" and path.name not in names:
                path.unlink(missing_ok=True)

    def keep_listing(self, repository: str, model: str, listing: object) -> None:
        """Keep what the copy of a model was made of."""
        folder = self._folder / "listed" / repository
        if self._limit is not None and folder.is_dir():
            _write(folder / model, json.dumps(listing))

    def kept(self, repository: str) -> tuple[list[str], dict[str, list[tuple[str, int, str]]]]:
        """Return the names of the models that were listed last, and what the copies of these were made of."""
        folder = self._folder / "listed" / repository
        try:
            names = json.loads(folder.with_suffix(".names").read_text())
            texts = {name: (folder / name).read_text() for name in names if (folder / name).exists()}
            return names, {name: [tuple(row) for row in json.loads(text)] for name, text in texts.items()}
        except (FileNotFoundError, ValueError):
            return [], {}


SHA256 = "sha256:"  # the beginning of a key that is the hash of its content


def name_of(*parts: object) -> str:
    """Return a name for a file that differs with any of the parts."""
    return hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()


def _fill(file: BinaryIO, size: int, read: Read) -> str:
    """Continue a download into a file. Return the SHA-256 of all of it. Raises Unreachable for another size."""
    digest, have = hashlib.sha256(), 0
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
        have += len(chunk)
    for chunk in read(have) if have < size else ():
        file.write(chunk)
        file.flush()  # a process that is killed leaves what it has for the next one
        digest.update(chunk)
        have += len(chunk)
    if have > size:
        file.truncate(0)
    if have != size:
        raise Unreachable(f"an object arrived with {have:,} of {size:,} bytes")
    return digest.hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading and writing, alone among all threads and processes, after the wait for the one that has it."""
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_at(path, file):
                yield file
                return


def _is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether an open file is still the one at the path: the process that had the lock may have renamed it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{uuid.uuid4().hex}.new")
    new.write_text(text)
    new.replace(path)

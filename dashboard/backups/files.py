"""The files of the shared folder that backups hold."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from django.conf import settings

from dashboard.backups.manifest import SETTLED, Entry
from dashboard.backups.store import Store
from dashboard.shared.exceptions import Conflict
from repository.files.progress import Progress as Steps
from repository.files.storage import hash_stream

_CHUNK = 1 << 20
_SAID_EVERY_S = 2.0

# path -> (size, time of the last change in nanoseconds, permissions)
Listing = dict[str, tuple[int, int, int]]


class Progress(Steps):
    """Tells how many bytes are done, at most every two seconds, and at the end. say: takes a line."""

    def __init__(self, what: str, total: int, say: Callable[[str], None]) -> None:
        self._what, self._total, self._say = what, total, say
        self._done, self._said_at = 0, time.monotonic()

    def advance(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._said_at >= _SAID_EVERY_S:
            self._said_at = time.monotonic()
            self._say(f"{self._what}: {shown(self._done)} of {shown(self._total)}.")


def shown(size: int) -> str:
    """Return a number of bytes for people."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.1f} KB"


def listed(parts: list[str]) -> tuple[Listing, list[str]]:
    """Return the files of these parts of the shared folder, and the folders without files."""
    files: Listing = {}
    empty: list[str] = []
    for part in parts:
        for folder, _, names in os.walk(settings.SHARED_DIR / part):
            where = Path(folder).relative_to(settings.SHARED_DIR).as_posix()
            before = len(files)
            for name in names:
                if not (name.startswith(".") and name.endswith(".tmp")):  # being written
                    _note(files, Path(folder, name), f"{where}/{name}")
            if len(files) == before:
                empty.append(where)
    return files, sorted(empty)


def _note(files: Listing, path: Path, name: str) -> None:
    try:
        found = path.stat()
    except FileNotFoundError:  # moved meanwhile, or a link to nothing
        return
    if path.is_file():
        files[name] = (found.st_size, found.st_mtime_ns, found.st_mode & 0o777)


class Copier:
    """Copies files into a store that does not have them yet.

    known: the objects of the store. earlier: the files of the last backup, of which those with the same size and time are not
    read again. spool: an empty folder.
    """

    def __init__(self, store: Store, known: set[str], earlier: list[Entry], spool: Path) -> None:
        self._store = store
        self._spool = spool
        self._known = known
        self._entries = {entry.path: entry for entry in earlier if entry.sha256 in known}
        self.stored = self.stored_bytes = self.read_bytes = 0

    def copy(self, files: Listing, progress: Progress) -> list[Entry]:
        """Return the entries of the files, without those that are not there any more."""
        found = (self._entry(path, *facts, progress) for path, facts in sorted(files.items()))
        return [entry for entry in found if entry is not None]

    def _entry(self, path: str, size: int, changed: int, mode: int, progress: Progress) -> Entry | None:
        last = self._entries.get(path)
        if last is None or (last.size, last.changed) != (size, changed):
            try:
                last = self._read(path, mode, progress)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise Conflict(f"{path} in the shared folder cannot be read: {error.strerror}") from None
        else:
            progress.advance(size)
        self._entries[path] = last
        return Entry(path, last.size, last.changed, mode, last.sha256)

    def _read(self, path: str, mode: int, progress: Progress) -> Entry:
        """Hash a file and store it. A file of a part that changes in place is stored as it was when it was read."""
        source = settings.SHARED_DIR / path
        if path.partition("/")[0] not in SETTLED:
            source = Path(shutil.copy2(source, self._spool / "file"))
        while True:
            before = source.stat()
            with source.open("rb") as file:
                sha256 = hash_stream(file, progress).sha256
            self.read_bytes += before.st_size
            new = sha256 not in self._known
            if new:
                self._store.put(f"objects/{sha256}", source)
            after = source.stat()
            if (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns):
                break
            if new:  # what was stored may not have this hash
                self._store.delete(f"objects/{sha256}")
        if new:
            self._known.add(sha256)
            self.stored, self.stored_bytes = self.stored + 1, self.stored_bytes + after.st_size
        return Entry(path, after.st_size, after.st_mtime_ns, mode, sha256)


def chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk

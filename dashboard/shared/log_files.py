"""Log files of the processes: written as bytes, rotated by size, read from the end."""

import os
from pathlib import Path

from repository.core.plain_text import plain

MAX_BYTES = 5 << 20
KEPT = 3


class RotatingLog:
    """Appends to the file `path`. A file over `max_bytes` is renamed to `path`.1, an older one to `path`.2, up to `kept`."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.kept = kept
        self._open()

    def _open(self) -> None:
        self._file = os.fdopen(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)
        self._size = self._file.tell()

    def write(self, data: bytes) -> None:
        """Append bytes. If the disk has an error, these bytes are lost, but no error is raised."""
        try:
            self._file.write(data)
        except OSError:
            return
        self._size += len(data)
        # Rotate only between two lines, so that a reader never misses the rest of one.
        if self._size > self.max_bytes and data.endswith(b"\n"):
            self._rotate()

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self.kept, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def close(self) -> None:
        self._file.close()


def tail(path: Path, lines: int, max_bytes: int = 256 << 10) -> list[str]:
    """Return the last `lines` lines of a log file as plain text; [] if there is no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    found = text.splitlines()
    if size > max_bytes:
        found = found[1:]  # its beginning was cut off
    return [plain(line) for line in found[-lines:]]


class LogFollower:
    """Reads lines that are appended to a log file from now on, across rotations."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity, self._offset = self._look()

    def _look(self) -> tuple[int, int]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size

    def read(self, max_bytes: int = 64 << 10) -> list[str]:
        """Return the whole lines that were appended since the last call, at most `max_bytes`."""
        identity, size = self._look()
        if identity != self._identity or size < self._offset:
            self._identity, self._offset = identity, 0
        if size == self._offset:
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(max_bytes)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == max_bytes:
            end = len(data)  # a line longer than max_bytes is returned in pieces
        self._offset += end
        return [plain(line) for line in data[:end].decode(errors="replace").splitlines()]

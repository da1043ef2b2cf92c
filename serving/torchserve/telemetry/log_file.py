"""A log file of limited size, rotated as by TorchServe's Log4j.

    access_log.log, access_log.log.1 ... access_log.log.5      a new file begins at 100 MB, and five older ones are kept

If the file is moved away while the server runs (by logrotate, for example), a new file is created.
"""

import datetime
import logging
import os
from pathlib import Path

from repository.core.plain_text import plain
from serving.telemetry.log_rotation import rotate

log = logging.getLogger(__name__)

LONGEST = 100 << 20  # the size in bytes at which a new file begins


class LogFile:
    """Appends to one file. Used by one thread at a time."""

    def __init__(self, path: Path, longest: int = LONGEST) -> None:
        """Create the file immediately, for programs that wait for it. An error is logged."""
        self._path = path
        self._longest = longest
        self._file: int | None = None
        self._failing = False
        self._torn = False  # whether the last line of the file is incomplete
        self.append("")

    def append(self, text: str) -> None:
        """Write whole lines. Lines that cannot be written, for example on a full disk, are lost, which is logged once."""
        try:
            self._write(plain(text).encode())
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.warning("%s cannot be written: %s", self._path.name, error.strerror)
            self._failing = True
            self.close()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        size = self._size()
        if size is not None and size > self._longest:
            rotate(self._path)
            size = None
        if size is None:
            self.close()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        assert self._file is not None
        if self._torn and data:
            data = b"\n" + data
        while data:
            data = data[os.write(self._file, data) :]
            self._torn = bool(data)

    def _size(self) -> int | None:
        """Return the size of the open file, or None if no file is open, or if another file has its name."""
        if self._file is None:
            return None
        try:
            there = os.stat(self._path)
        except FileNotFoundError:
            return None
        return there.st_size if os.path.samestat(there, os.fstat(self._file)) else None


def stamp(seconds: float) -> str:
    """Return a time in Log4j's ISO8601 form: local time, with a comma before the milliseconds."""
    return datetime.datetime.fromtimestamp(seconds).isoformat(timespec="milliseconds").replace(".", ",")

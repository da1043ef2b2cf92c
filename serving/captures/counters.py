"""The counters of one capture, in memory that outlives the process, so that a killed server's losses can be told exactly.

They are in a file of /dev/shm, which no disk can slow down. Where there is none, they are in the folder of the capture.
"""

import fcntl
import mmap
import os
import stat
from pathlib import Path

from repository.core.captures import Counts, counters_path

_SIZE = 4096
# Each counter has one writer: the event loop's thread writes the first four, the writer's thread the others.
CHOSEN, FULL, LARGE, UNFIT, STORAGE, LOST = range(6)
DROPPED = {"full": FULL, "large": LARGE, "unfit": UNFIT, "storage": STORAGE}


class Taken(Exception):
    """Another server writes this capture."""


class Counters:
    """`values[CHOSEN]` and so on. `known` tells whether an earlier server of this machine left them."""

    def __init__(self, folder: Path) -> None:
        """Open the counters of a capture, or make them. Raises Taken while another process has them, or OSError."""
        self.path = counters_path(folder)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise PermissionError(f"{self.path} belongs to somebody else")
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Taken from None
            self.known = found.st_size == _SIZE
            if not self.known:  # a file without holes: writing to a hole of a full disk would end the process
                os.posix_fallocate(descriptor, 0, _SIZE)
            self._map = mmap.mmap(descriptor, _SIZE)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self.values = memoryview(self._map).cast("Q")

    @property
    def dropped(self) -> dict[str, int]:
        """Return reason -> number of dropped requests, without reasons that never occurred."""
        return {reason: self.values[place] for reason, place in DROPPED.items() if self.values[place]}

    def restore(self, counts: Counts | None, first_free: int) -> None:
        """Begin with the counts that an earlier server wrote, because its counters are gone: the machine was restarted.

        first_free: a number that no row in a file has."""
        if counts is not None:
            self.values[CHOSEN] = counts["chosen"]
            self.values[LOST] = counts["lost"]
            for reason, place in DROPPED.items():
                self.values[place] = counts["dropped"].get(reason, 0)
        self.values[CHOSEN] = max(self.values[CHOSEN], first_free - 1)

    def close(self, forget: bool) -> None:
        """Let another process have the counters. forget: remove them, because the capture has ended."""
        if forget:
            self.path.unlink(missing_ok=True)
        self.values.release()
        self._map.close()
        os.close(self._descriptor)

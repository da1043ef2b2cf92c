"""A folder that lives as long as the server or one of its models, for copies from the cloud and unpacked archives."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_LOCK = "in-use"


class PrivateFolder:
    """A new folder that only this user can open; `close` removes it. Folders that killed servers left are removed first."""

    def __init__(self, parent: Path | None, prefix: str) -> None:
        """parent: the parent folder, or None for the system's temporary folder. prefix: the start of each folder's name."""
        base = parent or Path(tempfile.gettempdir())
        base.mkdir(parents=True, exist_ok=True)
        for leftover in base.glob(f"{prefix}*/{_LOCK}"):
            _remove_unless_used(leftover)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        beginning = self.path / "beginning"
        self._lock = os.open(beginning, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        beginning.rename(self.path / _LOCK)  # renamed after it is locked, so that no other process finds it unlocked

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_unless_used(lock: Path) -> None:
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:  # the folder of another user
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)

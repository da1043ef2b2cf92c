"""Deletes environments whose lock has changed, and the remains of those that were never whole."""

import fcntl
import shutil
from collections.abc import Collection
from pathlib import Path

from dashboard.environments.locks import Lock
from dashboard.environments.making import IN_USE, WHOLE


def remove_unused(root: Path, wanted: Collection[Lock]) -> list[str]:
    """Delete all environments that nobody makes or uses, except those of the locks that are wanted. Return their names."""
    kept = {lock.folder_name for lock in wanted}
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [path.name for path in folders if not (path.name in kept and (path / WHOLE).exists()) and _removed(path)]


def _removed(folder: Path) -> bool:
    with folder.with_suffix(".lock").open("w") as making:
        try:
            fcntl.flock(making, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with (folder / IN_USE).open("a") as used:
                fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (folder / WHOLE).unlink(missing_ok=True)  # a deletion that breaks off leaves no environment
                shutil.rmtree(folder)
        except BlockingIOError:
            return False
    return True

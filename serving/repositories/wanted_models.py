"""The models that will be loaded, according to --wanted-models-file: a JSON list of names that the dashboard writes.

Clients of a listed model that is not loaded yet get an error that asks them to retry.
"""

import json
import logging
from pathlib import Path

from serving.resources.followed_file import follow

log = logging.getLogger(__name__)

MAX_BYTES = 16 << 20
RECHECK_S = 0.2


class WantedModels:
    """The names in the file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._names: frozenset[str] = frozenset()
        self._refresh()
        follow("wanted-models", self._refresh, RECHECK_S)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def _refresh(self) -> None:
        """Read the file if it has changed. Without a file there are no names. A malformed file is ignored."""
        try:
            status = self._path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            self._stamp = stamp
            self._names = frozenset(_parse(self._path))
        except OSError:
            self._stamp, self._names = None, frozenset()
        except ValueError as error:
            log.warning("--wanted-models-file is not used: %s", error)


def _parse(path: Path) -> list[str]:
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    names = json.loads(content)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("expected a JSON list of names")
    return names

"""Keeps breaches of guardrails in a file, so that a candidate that breached one gets no requests after a restart.

The file is needed because a breach does not change the weight in the policy on disk. A breach belongs to the name of its
rollout, so a policy with another name starts without a breach.
"""

import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, cast

from repository.config.traffic import MAX_GUARDRAILS
from repository.core.errors import RepositoryError
from repository.files import storage

log = logging.getLogger(__name__)

LOCK_S = 1.0  # how long to wait for the lock while another server writes
ROOM_BYTES = 16 << 10  # disk space reserved for the next change: a full disk may itself cause a breach
_FAR_FUTURE = 1e11  # unix time


class Breach(NamedTuple):
    """Why a candidate gets no more requests. guardrail: the index of the breached guardrail in the policy. at: unix time."""

    rollout: str
    guardrail: int
    reason: str
    at: float


Change = Callable[[dict[str, Breach]], object]  # a function that changes the content of the file


class Breaches:
    """The breaches of one server, by the key of the model. Without a path they are lost when the process ends.

    Several servers may share a file, because each writes only its own changes. A change takes effect immediately. A thread
    writes it later, because the disk may be slow and another server may hold the lock.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Breach] = _read(path) if path is not None else {}
        self._unwritten: list[Change] = []
        self._lock = threading.Lock()  # protects _unwritten
        self._thread = ThreadPoolExecutor(1, "breaches")
        self._written = True  # whether the last write succeeded, with room for the next change
        self._write(LOCK_S)  # a file that cannot be written is logged at the start, before a breach is lost

    def of(self, model: str, rollout: str) -> Breach | None:
        """Return the breach of a rollout, or None if there was none."""
        found = self._known.get(model)
        return found if found is not None and found.rollout == rollout else None

    def keep(self, model: str, breach: Breach) -> None:
        """Remember a breach and begin to write it to the file. If the write fails, log that; the breach stays in force."""
        self._known[model] = breach
        self._change(lambda known: known.update({model: breach}))

    def forget(self, model: str) -> None:
        """Forget the breach of a model whose policy was removed or has another name."""
        before = self._known.pop(model, None)
        if before is not None:
            self._change(lambda known: known.pop(model) if known.get(model) == before else None)

    def tick(self) -> None:
        """Retry a failed write. Called once a second."""
        if not self._written:
            self._thread.submit(self._write, 0.0)

    def close(self) -> None:
        """Wait until each change is written or has failed. Do not call this on the event loop's thread."""
        self._thread.shutdown()

    def _change(self, change: Change) -> None:
        if self._path is not None:
            with self._lock:
                self._unwritten.append(change)
            self._thread.submit(self._write, LOCK_S)

    def _write(self, wait_s: float) -> None:
        """Apply the changes to the file."""
        path = self._path
        if path is None:
            return
        with self._lock:
            changes = list(self._unwritten)
        try:
            with storage.locked(path.with_name(f".{path.name}.lock"), path.name, wait_s=wait_s):
                if changes:
                    known = _read(path)
                    for change in changes:
                        change(known)
                    content = {model: breach._asdict() for model, breach in sorted(known.items())}
                    storage.write_reserved(path, json.dumps(content, indent=1).encode())
                    with self._lock:
                        del self._unwritten[: len(changes)]
                storage.reserve(path, ROOM_BYTES)
        except (OSError, RepositoryError) as error:
            reason = error.message if isinstance(error, RepositoryError) else error.strerror or "the disk failed"
            if self._written:
                log.error("breaches of rollouts cannot be written to %s: %s; a restart would forget them", path, reason)
            self._written = False
        else:
            if not self._written:
                log.info("breaches of rollouts can be written to %s again", path)
            self._written = True


def _read(path: Path) -> dict[str, Breach]:
    """Return the breaches in the file; {} if there is no file. Log what cannot be read and leave it out."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.error("breaches of rollouts could not be read from %s (%s): none is known", path, type(error).__name__)
        return {}
    rows = content.items() if isinstance(content, dict) else [("", content)]
    known = {model: Breach(**row) for model, row in rows if _is_breach(row)}
    if len(known) < len(rows):
        log.error("%s has entries that are not breaches of rollouts: they are ignored", path)
    return known


def _is_breach(row: object) -> bool:
    if not isinstance(row, dict) or row.keys() != set(Breach._fields):
        return False
    rollout, guardrail, reason, at = (row[name] for name in Breach._fields)
    texts = isinstance(rollout, str) and isinstance(reason, str)
    return texts and type(guardrail) is int and 0 <= guardrail < MAX_GUARDRAILS and _is_time(at)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast(float, value) < _FAR_FUTURE

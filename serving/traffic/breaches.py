"""Breaches of guardrails, in a file: a server that restarts does not give a candidate requests again that it had taken out.

The policy on disk still says the weight at which the breach was until somebody writes another. A breach belongs to the name of
its rollout, so that a policy with another name is not held back.
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

LOCK_S = 1.0  # that another server may take to write
ROOM_BYTES = 16 << 10  # kept on the disk for the next change: a full disk may be why a candidate is taken out
_FAR_FUTURE = 1e11  # unix time


class Breach(NamedTuple):
    """Why a candidate gets no requests any more. guardrail: its place in the policy. at: unix time."""

    rollout: str
    guardrail: int
    reason: str
    at: float


Change = Callable[[dict[str, Breach]], object]  # of what the file holds


class Breaches:
    """Those of one server, by the key of the model. Without a path they last as long as the process.

    Where several servers were given one file, each writes its own changes into what the others have left there. What changes
    holds at once, and a thread of its own writes it: the disk may be slow, and another server may hold the lock.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Breach] = _read(path) if path is not None else {}
        self._unwritten: list[Change] = []
        self._lock = threading.Lock()  # of the list above
        self._thread = ThreadPoolExecutor(1, "breaches")
        self._written = True  # there was room when that was tried last, for the next change too
        self._write(LOCK_S)  # a file that cannot be written is told of now, not when the first breach is lost

    def of(self, model: str, rollout: str) -> Breach | None:
        """Return the breach of a rollout; None where there was none."""
        found = self._known.get(model)
        return found if found is not None and found.rollout == rollout else None

    def keep(self, model: str, breach: Breach) -> None:
        """Remember one, and have it written; where that fails it is said in the log, and holds all the same."""
        self._known[model] = breach
        self._change(lambda known: known.update({model: breach}))

    def forget(self, model: str) -> None:
        """The model's policy has another name, or there is none any more."""
        before = self._known.pop(model, None)
        if before is not None:
            self._change(lambda known: known.pop(model) if known.get(model) == before else None)

    def tick(self) -> None:
        """A second has passed: try again what could not be written, for the disk may have room by now."""
        if not self._written:
            self._thread.submit(self._write, 0.0)

    def close(self) -> None:
        """Return when all has been written, or could not be. Not for the event loop's thread."""
        self._thread.shutdown()

    def _change(self, change: Change) -> None:
        if self._path is not None:
            with self._lock:
                self._unwritten.append(change)
            self._thread.submit(self._write, LOCK_S)

    def _write(self, wait_s: float) -> None:
        """Bring what the file holds up to date."""
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
    """Return what an earlier process left; {} where there is nothing, or nothing that can be read, which is logged."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        log.error("breaches of rollouts could not be read from %s (%s): none is known", path, type(error).__name__)
        return {}
    rows = content.items() if isinstance(content, dict) else [("", content)]
    known = {model: Breach(**row) for model, row in rows if _whole(row)}
    if len(known) < len(rows):
        log.error("%s holds what is no breach of a rollout: that is passed over", path)
    return known


def _whole(row: object) -> bool:
    if not isinstance(row, dict) or row.keys() != set(Breach._fields):
        return False
    rollout, guardrail, reason, at = (row[name] for name in Breach._fields)
    texts = isinstance(rollout, str) and isinstance(reason, str)
    return texts and type(guardrail) is int and 0 <= guardrail < MAX_GUARDRAILS and _is_time(at)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= cast(float, value) < _FAR_FUTURE

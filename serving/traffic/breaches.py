"""Breaches of guardrails, in a file: a server that restarts does not give a candidate requests again that it had taken out.

The policy on disk still says the weight at which the breach was until somebody writes another. A breach belongs to the name of
its rollout, so that a policy with another name is not held back.
"""

import json
import logging
from pathlib import Path
from typing import NamedTuple, cast

from repository.config.traffic import MAX_GUARDRAILS
from repository.core.errors import RepositoryError
from repository.files import storage

log = logging.getLogger(__name__)

_FAR_FUTURE = 1e11  # unix time


class Breach(NamedTuple):
    """Why a candidate gets no requests any more. guardrail: its place in the policy. at: unix time."""

    rollout: str
    guardrail: int
    reason: str
    at: float


class Breaches:
    """Those of one server, by the key of the model. Without a path they last as long as the process."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, Breach] = _read(path) if path is not None else {}

    def of(self, model: str, rollout: str) -> Breach | None:
        """Return the breach of a rollout; None where there was none."""
        found = self._known.get(model)
        return found if found is not None and found.rollout == rollout else None

    def keep(self, model: str, breach: Breach) -> None:
        """Remember one. It is on disk when this returns; where that fails it is said in the log, and holds all the same."""
        self._known[model] = breach
        self._write()

    def forget(self, model: str) -> None:
        """The model's policy has another name, or there is none any more."""
        if self._known.pop(model, None) is not None:
            self._write()

    def _write(self) -> None:
        """Write them: a few lines, rarely, so that it is done at once."""
        if self._path is None:
            return
        content = {model: breach._asdict() for model, breach in sorted(self._known.items())}
        try:
            storage.write_atomic(self._path, json.dumps(content, indent=1).encode())
        except (OSError, RepositoryError) as error:
            reason = error.message if isinstance(error, RepositoryError) else error.strerror or "the disk failed"
            log.error(
                "breaches of rollouts could not be written to %s: %s; a restart would forget them", self._path, reason
            )


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

"""The files of TorchServe's snapshots: <log location>/config/20260131120000000-startup.cfg and other names."""

import logging
import re
from collections.abc import Callable
from pathlib import Path

from repository.torchserve.properties import InvalidProperties, check_snapshot

log = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9]{17})-[a-z]+\.cfg", re.ASCII)


def snapshot_folder(log_location: Path) -> Path:
    return log_location / "config"


def snapshots_in(folder: Path) -> list[Path]:
    """Return the snapshots of a folder, the newest last."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=lambda path: path.name)


def prune(folder: Path, kept: int) -> None:
    """Remove all snapshots except the newest `kept` and the last one that was written at a start."""
    found = snapshots_in(folder)
    started = [path for path in found if path.stem.endswith("-startup")][-1:]
    for path in found[:-kept]:
        if path not in started:
            path.unlink(missing_ok=True)


def last_snapshot(log_location: Path, tell: Callable[[str], object] = log.warning) -> Path | None:
    """Return the newest intact snapshot, or None if there are no snapshots. tell gets a sentence for each damaged snapshot.

    Raises InvalidProperties if all snapshots are damaged, because a start without a snapshot would forget the registrations.
    """
    damaged = ""
    for path in reversed(snapshots_in(snapshot_folder(log_location))):
        try:
            check_snapshot(path)
        except InvalidProperties as error:
            damaged = f"the snapshot {path} is damaged: {error}"
            tell(f"{damaged}; the one before it is taken")
        else:
            return path
    if damaged:
        raise InvalidProperties(f"{damaged}, and there is none before it; --ncs starts without snapshots")
    return None

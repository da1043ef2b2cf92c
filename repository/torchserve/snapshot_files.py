"""Where the snapshots of TorchServe's side lie: <log location>/config/20260131120000000-startup.cfg, and so on."""

import re
from pathlib import Path

_NAME = re.compile(r"([0-9]{17})-[a-z]+\.cfg", re.ASCII)


def snapshot_folder(log_location: Path) -> Path:
    return log_location / "config"


def snapshots_in(folder: Path) -> list[Path]:
    """Return the snapshots of a folder, the newest last."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=lambda path: path.name)


def last_snapshot(log_location: Path) -> Path | None:
    """Return the newest snapshot; None where there is none."""
    found = snapshots_in(snapshot_folder(log_location))
    return found[-1] if found else None

"""Older files of a log that stays within bounds: server.log.1 is the one before, server.log.5 the oldest."""

from itertools import pairwise
from pathlib import Path

KEPT = 5  # older files


def rotate(path: Path) -> None:
    """Give a file the name of the one before it, and those their next, so that a new one can begin. Raises OSError."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1))]
    for newer, older in reversed(list(pairwise(names))):
        if newer.exists():
            newer.replace(older)

"""Rotates a log file: server.log.1 is the previous file, server.log.5 the oldest."""

from itertools import pairwise
from pathlib import Path

KEPT = 5  # the number of older files


def rotate(path: Path) -> None:
    """Rename a file to NAME.1, and each older file to the next number. Raises OSError."""
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, KEPT + 1))]
    for newer, older in reversed(list(pairwise(names))):
        if newer.exists():
            newer.replace(older)

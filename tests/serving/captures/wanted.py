"""What a capture keeps, as the dashboard writes it."""

import time
from pathlib import Path
from typing import Any, cast

import orjson

from repository.core.capture_files import Rows, read_rows
from repository.core.captures import WANTED, Counts, Wanted, capture_files, read_counts
from repository.files.storage import write_atomic


def want(folder: Path, model: str, **fields: Any) -> Path:
    """Ask for a capture of everything in `folder`, unless the fields say otherwise."""
    wanted = {
        "model": model,
        "share": 1.0,
        "errors_only": False,
        "versions": [],
        "until": time.time() + 3600,
        "bytes": 1 << 30,
        "reserve": 0,
        "salt": "00" * 16,
        "inputs": {},
        "outputs": {},
        "stopped": False,
    } | fields
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / WANTED, orjson.dumps(cast(Wanted, wanted)))
    return folder


def captured(folder: Path) -> list[Rows]:
    return [read_rows(file.path) for file in capture_files(folder)]


def numbers(folder: Path) -> list[int]:
    """The numbers of all rows, in the order of the files."""
    return [int(number) for rows in captured(folder) for number in rows.numbers]


def counts(folder: Path) -> Counts:
    found = read_counts(folder)
    assert found is not None
    return found

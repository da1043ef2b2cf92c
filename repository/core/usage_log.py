"""The format of the usage log: how much each token has used of each model, which the server writes and the dashboard reads.

A folder has one file for each day (in UTC), `2026-11-24.log`. A file has one record a line: the CRC-32 of its JSON in hex, a
space, and the JSON. The values of a record are totals of the day, not increments, so reading a record twice changes nothing,
and a later record makes up for a damaged one.
"""

import json
import re
import zlib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".log"
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}\.log")

# The counters of a Use, in the order of the log. compute_ns: how long instances were busy with the requests, in ns.
COUNTERS = (
    "requests",
    "failed",
    "refused",
    "rows",
    "compute_ns",
    "bytes_in",
    "bytes_out",
    "tokens_in",
    "tokens_out",
)


Key = tuple[str, str]  # SHA-256 of a token in hex, name of a model
Counts = tuple[int, ...]  # in the order of COUNTERS


class Holder(NamedTuple):
    """Whose token it is. person: "" if the token belongs to no person."""

    token: str
    person: str
    groups: tuple[str, ...]


class Record(NamedTuple):
    """One line of the log. sequence: grows by 1 with each record of a file. at: when it was written, in Unix seconds.

    holders: SHA-256 of a token -> its holder, for tokens that the file names for the first time, or whose holder has changed.
    uses: (SHA-256 of a token, model) -> the totals of the day, in the order of COUNTERS.
    """

    sequence: int
    at: float
    holders: Mapping[str, Holder]
    uses: Mapping[Key, Counts]


class Lines(NamedTuple):
    """What was read. end: the offset behind the last complete line. damaged: how many lines were left out."""

    records: list[Record]
    end: int
    damaged: int


def encode(record: Record) -> bytes:
    """Return the line of a record."""
    content = json.dumps(
        {
            "sequence": record.sequence,
            "at": record.at,
            "holders": record.holders,
            "uses": [[digest, model, *counts] for (digest, model), counts in record.uses.items()],
        },
        separators=(",", ":"),
    ).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)


def decode(data: bytes) -> Lines:
    """Return the records of complete lines. A line whose CRC differs, as after a power cut, is left out and counted."""
    end = data.rfind(b"\n") + 1
    records: list[Record] = []
    damaged = 0
    for line in data[:end].splitlines():
        record = _record(line)
        if record is None:
            damaged += 1
        else:
            records.append(record)
    return Lines(records, end, damaged)


def _record(line: bytes) -> Record | None:
    content = line[9:]
    try:
        if int(line[:8], 16) != zlib.crc32(content):
            return None
        given = json.loads(content)
        holders = {digest: Holder(one[0], one[1], tuple(one[2])) for digest, one in given["holders"].items()}
        uses = {(one[0], one[1]): tuple(map(int, one[2 : 2 + len(COUNTERS)])) for one in given["uses"]}
        return Record(int(given["sequence"]), float(given["at"]), holders, uses)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None


def day_of(path: Path) -> date | None:
    """Return the day of a file of the log, or None if it is another file."""
    if not _NAME.fullmatch(path.name):
        return None
    try:
        return date.fromisoformat(path.stem)
    except ValueError:
        return None


def day_files(folder: Path) -> list[Path]:
    """Return the files of a log, the oldest first; [] if there is no such folder."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if day_of(path) is not None)

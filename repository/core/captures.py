"""A capture: the folder in which the server keeps requests of clients with their answers, and the dashboard reads them.

    captures/<id>/capture.json                  what to capture: written by the dashboard, read by the server (Wanted)
    captures/<id>/counts.json                   what became of the chosen requests: written by the server (Counts)
    captures/<id>/000000000001-500.parquet      500 requests; the first has the number 1

Every file is written under a temporary name, which begins with a dot, and renamed when it is whole. A Parquet file never
changes. It has one row for each request, with these columns:

    number          int64: counts the requests that the capture chose, from 1 on, over all restarts of the server. A number
                    that is in no file belongs to a request that was dropped or lost
    id              string: the id of the request; "" if the client gave none
    at              timestamp (microseconds, UTC): when the answer was sent
    version         int64: the version that answered; 0 if the request was refused before a version was chosen, or if a
                    model on another server answered
    arm             string: "stable" or "candidate" of a rollout; "" without a rollout
    error           string: the error that the client got; null if the request was answered
    latency_us      int64: from the decoded request to its answer
    in.<name>       list: the elements of an input, row by row; null if the request lacks the input, or a mask drops it
    in_shape.<name> list of int64: the shape of the input, with the batch dimension; null if the request lacks the input
    out.<name>, out_shape.<name>
                    the same for an output; null if the request failed or did not ask for the output

The lists hold bool, int8 to int64, uint8 to uint64, float32, float64 or binary (BYTES). FP16 and BF16 are float32. The metadata
of the field of a list has the datatype: {"datatype": "BF16"}. All rows of a file have the same datatypes; an input may be in
one file and not in the next.

Masks are applied before a row is written: "drop" writes null, "hash" writes 32 hexadecimal digits in place of each element of
BYTES (equal elements have equal digits in one capture), "round" writes the nearest multiple of a step.
"""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import orjson

from repository.core.errors import CaptureUnusable

WANTED, COUNTS = "capture.json", "counts.json"
_SHARED = Path("/dev/shm")  # memory that outlives a process
_FILE = re.compile(r"(\d{12})-(\d{1,9})\.parquet", re.ASCII)


class Mask(TypedDict, total=False):
    """What becomes of a tensor before it is written. rule: "drop", "hash" or "round". step: of "round"."""

    rule: str
    step: float


class Wanted(TypedDict):
    """What a capture keeps.

    share: of the requests, from 0 to 1. errors_only: only requests that fail. versions: only these; none for all.
    accounts: only requests with a token of these names, as in the auth file, or of these people; none for all.
    until: when the capture ends, in unix seconds. bytes: of all its Parquet files.
    reserve: bytes of the disk that stay free. salt: of the mask "hash", hexadecimal.
    inputs, outputs: the masks, by the name of the tensor. stopped: a person ended the capture.
    """

    model: str
    share: float
    errors_only: bool
    versions: list[int]
    accounts: NotRequired[list[str]]
    until: float
    bytes: int
    reserve: int
    salt: str
    inputs: dict[str, Mask]
    outputs: dict[str, Mask]
    stopped: bool


class Counts(TypedDict):
    """What became of the requests. chosen = written + waiting + dropped + lost.

    chosen: requests that the capture chose. written: rows in files. waiting: not yet in a file.
    dropped: reason -> requests that the capture gave up: "full" (the queue), "storage" (the disk), "large" (one request),
    "unfit" (tensors on a GPU or in shared memory, streams).
    lost: requests that were waiting when a server was killed.
    bytes: of all files. trouble: why the newest file could not be written, or the folder not be read; "" if all is well.
    ended: why the capture has ended ("time", "bytes", "stopped"); "" while it runs. at: when this was written (unix seconds).
    """

    chosen: int
    written: int
    waiting: int
    dropped: dict[str, int]
    lost: int
    bytes: int
    trouble: str
    ended: str
    at: float


@dataclass(frozen=True, slots=True, order=True)
class CaptureFile:
    """One Parquet file. first: the number of its first request. Numbers grow from row to row, and may have gaps."""

    first: int
    rows: int
    path: Path


def counters_path(folder: Path) -> Path:
    """Return the file of the counters of the capture in this folder. Only the server reads it; who deletes a capture also
    removes this file."""
    if not _SHARED.is_dir():
        return folder / ".counters"
    return _SHARED / f"slipway-capture-{hashlib.sha256(bytes(folder.resolve())).hexdigest()[:32]}"


def file_name(first: int, rows: int) -> str:
    return f"{first:012d}-{rows}.parquet"


def capture_files(folder: Path) -> list[CaptureFile]:
    """Return the whole Parquet files of a capture, the oldest first; none if there is no such folder.

    Raises CaptureUnusable if the folder cannot be read.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(error) from None
    found = ((match, folder / name) for name in names if (match := _FILE.fullmatch(name)))
    return sorted(CaptureFile(int(match[1]), int(match[2]), path) for match, path in found)


def read_wanted(folder: Path) -> Wanted | None:
    """Return what a capture keeps, or None if there is no such capture."""
    try:
        found: Wanted = orjson.loads((folder / WANTED).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found


def read_counts(folder: Path) -> Counts | None:
    """Return the newest counts of the server, or None if it has written none. Raises CaptureUnusable if they cannot be read."""
    try:
        found: Counts = orjson.loads((folder / COUNTS).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, orjson.JSONDecodeError) as error:
        raise unreadable(error) from None
    return found


def unreadable(error: OSError | ValueError) -> CaptureUnusable:
    """Return the error that says why a capture's files cannot be read."""
    reason = error.strerror if isinstance(error, OSError) else "a file is damaged"
    return CaptureUnusable(
        f"the folder of the capture cannot be read ({reason}): the account of the dashboard must be its owner"
    )

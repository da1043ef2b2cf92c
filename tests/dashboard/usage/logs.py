"""Writes usage logs for tests, as the server does."""

from datetime import date
from pathlib import Path

from repository.core.usage_log import COUNTERS, Holder, Record, encode

Uses = dict[tuple[str, str], dict[str, int]]


def record(sequence: int, uses: Uses, holders: dict[str, Holder] | None = None) -> bytes:
    counts = {key: tuple(given.get(name, 0) for name in COUNTERS) for key, given in uses.items()}
    return encode(Record(sequence, 1000.0 + sequence, holders or {}, counts))


def write_log(folder: Path, day: date, *records: bytes, append: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{day}.log"
    with path.open("ab" if append else "wb") as file:
        file.write(b"".join(records))
    return path

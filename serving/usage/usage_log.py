"""Writes the files of --usage-log: for each day a log, and the mapped counters of the days that are not completely logged.

The log outlives a power cut, up to the last second. The mapped counters outlive a kill of the server. At the start the greater
value of both counts, because counters only grow.
"""

import fcntl
import logging
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from repository.core.errors import RepositoryError
from repository.core.usage_log import SUFFIX, Counts, Holder, Key, Lines, Record, day_files, day_of, decode, encode
from repository.files.storage import write_atomic
from serving.core.errors import invalid
from serving.usage.counter_page import CounterPage, private_cells

log = logging.getLogger(__name__)

PAGE_SUFFIX = ".counters"
KEPT_DAYS = 40  # how long the log of a day is kept, for a dashboard that is down
Totals = tuple[dict[Key, Counts], dict[str, Holder]]  # of a day, with the holders that its log names
COMPACT_FROM = 4 << 20  # bytes of a file above which it is written anew, with only the latest totals


class UsageLog:
    """The folder of one server. All methods but `submit` run before the server starts or on the log's own thread."""

    def __init__(self, folder: Path | None, today: date) -> None:
        """folder: None keeps no log. Raises INVALID_ARG if the folder cannot be used, or another server uses it."""
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, "usage-log")
        self._totals: dict[Key, Counts] = {}  # of the open file
        self._holders: dict[str, Holder] = {}  # of the open file
        self._day: date | None = None
        self._sequence = 0
        self._size = 0
        self._written = True  # whether the last write succeeded
        self.cells: dict[Key, memoryview[int]] = {}  # the counters of today that earlier processes have left
        self.holders: dict[str, Holder] = {}
        self.page = CounterPage(None)
        if folder is not None:
            try:
                self._open(folder, today)
            except OSError as error:
                raise invalid(f"--usage-log: the folder cannot be used: {error.strerror}") from None

    def _open(self, folder: Path, today: date) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise invalid("--usage-log: another server writes to this folder; give each server its own") from None
        for left in sorted(folder.glob(f"*{PAGE_SUFFIX}")):
            day = day_of(left.with_suffix(SUFFIX))
            if day is not None and day != today:
                self._finish(day, {key: tuple(cells) for key, cells in CounterPage(left).restored().items()})
        self._read(today)
        self.page = self.page_of(today)
        self.cells = self.page.restored()
        for key, counts in self._totals.items():
            cells = self.cells.get(key)
            if cells is None:
                cells = self.cells[key] = self.page.cells(key)
            for index, count in enumerate(counts):
                cells[index] = max(cells[index], count)
        self.holders = dict(self._holders)
        self._write(today, {key: tuple(cells) for key, cells in self.cells.items()}, {})

    # -- for the ledger ----------------------------------------------------------------------------------------------
    def page_of(self, day: date) -> CounterPage:
        """Return the mapped counters of a day."""
        return CounterPage(None if self._folder is None else self._folder / f"{day}{PAGE_SUFFIX}")

    def submit(
        self, day: date, uses: Mapping[Key, Counts], holders: Mapping[str, Holder], ends: bool = False
    ) -> "Future[bool]":
        """Begin to write a record. The result is whether it is on disk. ends: the counters of the day no longer change."""
        return self._thread.submit(self._end if ends else self._write, day, uses, holders)

    def has(self, day: date) -> bool:
        return self._folder is not None and (self._folder / f"{day}{SUFFIX}").exists()

    def totals(self, day: date) -> "Future[Totals]":
        """Begin to read what is logged of a day, after all writes before; nothing if the file cannot be read."""
        return self._thread.submit(self._totals_of, day)

    def close(self) -> None:
        """Wait until everything is written. Do not call this on the event loop's thread."""
        self._thread.shutdown()
        if self._folder is not None:
            os.close(self._lock)

    # -- on the thread -----------------------------------------------------------------------------------------------
    def _end(self, day: date, uses: Mapping[Key, Counts], holders: Mapping[str, Holder]) -> bool:
        """Write the last record of a day. The mapped counters are removed only after it is on disk."""
        done = self._write(day, uses, holders)
        if done and self._folder is not None:
            (self._folder / f"{day}{PAGE_SUFFIX}").unlink(missing_ok=True)
            self._remove_old(min(day, datetime.now(UTC).date()))  # a clock that was ahead must not remove newer days
        return done

    def _write(self, day: date, uses: Mapping[Key, Counts], holders: Mapping[str, Holder]) -> bool:
        folder = self._folder
        if folder is None:
            return True
        try:
            if day != self._day:
                self._read(day)
            new = {digest: one for digest, one in holders.items() if self._holders.get(digest) != one}
            record = Record(self._sequence + 1, round(time.time(), 3), new, uses)
            path = folder / f"{day}{SUFFIX}"
            totals, named = {**self._totals, **uses}, self._holders | new
            if not self._size or self._size > max(COMPACT_FROM, 200 * len(totals)):
                write_atomic(path, encode(record._replace(holders=named, uses=totals)), mode=0o600)
            else:
                _append(path, encode(record), self._size)
            self._size = path.stat().st_size
            self._sequence, self._totals, self._holders = record.sequence, totals, named
        except (OSError, RepositoryError) as error:
            if self._written:
                reason = error.message if isinstance(error, RepositoryError) else error.strerror
                log.error("the usage log cannot be written: %s; it is tried again every second", reason)
            self._written = False
            self._size = 0  # the next record replaces the file
            return False
        if not self._written:
            log.info("the usage log can be written again")
        self._written = True
        return True

    def _totals_of(self, day: date) -> Totals:
        if self._folder is None:
            return {}, {}
        try:
            self._read(day)
        except OSError as error:
            log.error("the usage log of %s cannot be read, and its quotas begin anew: %s", day, error.strerror)
            return {}, {}
        return dict(self._totals), dict(self._holders)

    def _read(self, day: date) -> None:
        """Make a day's file the open one. It is written anew with the next record, which repairs a damaged file."""
        assert self._folder is not None
        path = self._folder / f"{day}{SUFFIX}"
        lines = Lines([], 0, 0)
        torn = False
        if path.exists():
            data = path.read_bytes()
            lines = decode(data)
            torn = lines.end < len(data)
        if lines.damaged or torn:
            log.warning(
                "the usage log of %s is damaged: %d of its records are left out; totals of later records make up for them",
                day,
                lines.damaged + torn,
            )
        self._day, self._size, self._sequence, self._totals, self._holders = day, 0, 0, {}, {}
        for record in lines.records:
            self._sequence = max(self._sequence, record.sequence)
            self._totals |= record.uses
            self._holders |= record.holders

    def _finish(self, day: date, left: Mapping[Key, Counts]) -> None:
        """Log the counters that a killed process has left of an earlier day."""
        self._read(day)
        logged = self._totals
        none = tuple(private_cells())
        uses = {key: tuple(map(max, counts, logged.get(key, none))) for key, counts in left.items()}
        self._end(day, uses, {})

    def _remove_old(self, day: date) -> None:
        assert self._folder is not None
        for path in day_files(self._folder):
            of = day_of(path)
            if of is not None and of < day - timedelta(days=KEPT_DAYS):
                path.unlink(missing_ok=True)


def _append(path: Path, data: bytes, size: int) -> None:
    """Append to a file of `size` bytes, and flush it. A write that fails leaves the file as it was."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(descriptor, size)  # removes what a failed write has left
        if os.pwrite(descriptor, data, size) != len(data):
            os.ftruncate(descriptor, size)
            raise OSError(28, "the disk is full")
        os.fdatasync(descriptor)
    finally:
        os.close(descriptor)

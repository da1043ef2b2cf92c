"""One capture that is running: its intake chooses requests on the event loop's thread, and another thread writes them.

    chosen -> waiting -> written, or dropped ("storage")
      |
      +-> dropped ("full", "large", "unfit")

The two threads share a queue, and counters of which each has one writer.
"""

import logging
import time
from pathlib import Path

import orjson

from repository.core.capture_files import NUMBER, SIZE, Row, alike, encoded_rows
from repository.core.captures import (
    COUNTS,
    Counts,
    Wanted,
    capture_files,
    file_name,
    read_counts,
)
from repository.core.errors import RepositoryError
from repository.files.storage import disk_usage, write_atomic
from serving.captures.counters import CHOSEN, LOST, STORAGE, Counters
from serving.captures.intake import Intake
from serving.captures.masks import Masks

log = logging.getLogger(__name__)

TELL_S = 1.0  # between two writes of the counts
FLUSH_S = 5.0  # how long a request may wait for others of its file
FLUSH_BYTES = 2 << 20  # of a file: encoding one takes Python's lock, so that the event loop waits some ms
FLUSH_ROWS = 10_000


class Capture:
    """All methods are called on the writer's thread. intake: gives the requests."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        """Continue a capture where an earlier server ended. Raises Taken while another server writes it, or OSError."""
        self.folder = folder
        self._masks = Masks(wanted)
        self._trouble = self.ended = ""
        self._oldest_s = 0.0
        self._told: Counts | None = None
        self._told_at = 0.0
        files = capture_files(folder)
        self._written = sum(file.rows for file in files)
        self._bytes = sum(file.path.stat().st_size for file in files)
        self._counters = Counters(folder)
        values = self._counters.values
        if not self._counters.known:
            self._counters.restore(read_counts(folder), files[-1].first + files[-1].rows if files else 1)
        known = self._written + sum(self._counters.dropped.values()) + values[LOST]
        values[LOST] += max(0, values[CHOSEN] - known)
        values[CHOSEN] = max(values[CHOSEN], known)
        self.intake = Intake(wanted, values, self._masks.dropped_inputs, self._masks.dropped_outputs)

    @property
    def wanted(self) -> Wanted:
        return self.intake.wanted

    @property
    def model(self) -> str:
        return self.wanted["model"]

    def work(self, now: float, flush: bool = False) -> None:
        """Write what is due, tell the counts, and end the capture if its time is over or its bytes are used."""
        if not self.folder.is_dir():
            self._end("deleted")
            while rows := self._take_waiting():
                self._counters.values[STORAGE] += len(rows)
            return
        over = "stopped" if self.wanted["stopped"] else "time" if now >= self.wanted["until"] else ""
        intake = self.intake
        if not intake.waiting:
            self._oldest_s = now
        many = intake.waiting_bytes >= FLUSH_BYTES or len(intake.waiting) >= FLUSH_ROWS
        if intake.waiting and (flush or over or many or now - self._oldest_s >= FLUSH_S or now < self._oldest_s):
            self._flush()
            self._oldest_s = now
        if self._bytes >= self.wanted["bytes"]:
            over = "bytes"
        if over:
            self._end(over)
            self._flush()
        if flush or over or not self._told_at <= now < self._told_at + TELL_S:
            self._tell(now)

    def close(self) -> None:
        """Write what waits, and let another server continue the capture, unless it has ended."""
        self.intake.takes = False
        if self.ended != "deleted":
            self.work(time.time(), flush=True)
        self._counters.close(forget=bool(self.ended))

    def _end(self, why: str) -> None:
        self.ended, self.intake.takes = why, False

    def _flush(self) -> None:
        """Write the requests that wait now. Those that come meanwhile wait for the next file: it would be a tiny one."""
        left = len(self.intake.waiting)
        while left > 0 and (rows := self._take_waiting()):
            left -= len(rows)
            for group in alike(rows):
                self._write(group)
            self.intake.taken_bytes += sum(row[SIZE] for row in rows)

    def _take_waiting(self) -> list[Row]:
        """Take the requests of about one file from the queue."""
        return self.intake.take(FLUSH_ROWS, FLUSH_BYTES)

    def _write(self, rows: list[Row]) -> None:
        """Write one file. If that fails, its requests are dropped."""
        try:
            content = encoded_rows(rows, self._masks.masked)
            if disk_usage(self.folder)[2] < self.wanted["reserve"] + len(content):
                raise OSError(0, "the disk is nearly full")
            write_atomic(self.folder / file_name(rows[0][NUMBER], len(rows)), content, mode=0o600)
        except BaseException as error:  # the package of Parquet panics at some faults: a panic is no Exception
            self._counters.values[STORAGE] += len(rows)
            trouble = _words(error)
            if trouble != self._trouble:
                log.warning(
                    "requests of the capture %s of model '%s' are dropped: %s", self.folder.name, self.model, trouble
                )
            self._trouble = trouble
            return
        self._trouble = ""
        self._written += len(rows)
        self._bytes += len(content)

    def _tell(self, now: float) -> None:
        """Write the counts for the dashboard, if they have changed."""
        values = self._counters.values
        dropped, lost = self._counters.dropped, values[LOST]
        chosen = values[CHOSEN]
        counts = Counts(
            chosen=chosen,
            written=self._written,
            waiting=max(0, chosen - self._written - sum(dropped.values()) - lost),
            dropped=dropped,
            lost=lost,
            bytes=self._bytes,
            trouble=self._trouble,
            ended=self.ended,
            at=now,
        )
        self._told_at = now
        if self._told is not None and {**counts, "at": self._told["at"]} == self._told:
            return
        try:
            write_atomic(self.folder / COUNTS, orjson.dumps(counts), mode=0o600)
            self._told = counts
        except (OSError, RepositoryError) as error:
            if not self._trouble:
                log.warning("the counts of the capture %s cannot be written: %s", self.folder.name, _words(error))
            self._trouble = _words(error)


def _words(error: BaseException) -> str:
    if isinstance(error, RepositoryError):
        return error.message
    return error.strerror or str(error) if isinstance(error, OSError) else type(error).__name__

"""One capture that is running: it chooses requests on the event loop's thread, and another thread writes them.

    chosen -> waiting -> written, or dropped ("storage")
      |
      +-> dropped ("full", "large", "unfit")

The two threads share a queue, and counters of which each has one writer.
"""

import logging
import random
import time
from collections import deque
from pathlib import Path

import numpy as np
import orjson

from repository.core.capture_files import Record, alike, encoded
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
from serving.captures.counters import CHOSEN, FULL, LARGE, LOST, STORAGE, UNFIT, Counters
from serving.captures.masks import Masks
from serving.core.datatypes import Tensor
from serving.core.errors import ServingError
from serving.core.in_flight import InFlightRequest, QuietObserver
from serving.core.response import Answer, InferenceResponse
from serving.core.rollout_arm import arm_of
from serving.telemetry.traffic_samples import on_host, size_of
from serving.usage.accounts import Use

log = logging.getLogger(__name__)

MAX_REQUEST_BYTES = 4 << 20  # of the tensors of one request and its answer
MAX_WAITING_BYTES = 16 << 20  # of the requests of one capture that wait to be written
MAX_WAITING = 20_000
TELL_S = 1.0  # between two writes of the counts
FLUSH_S = 5.0  # how long a request may wait for others of its file
FLUSH_BYTES = 8 << 20
FLUSH_ROWS = 10_000
MAX_TEXT = 500  # characters of a request's id or error that are written


class Capture:
    """wanted: what to keep. `take` is called on the event loop's thread; all that is below it on the writer's thread."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        """Continue a capture where an earlier server ended. Raises Taken while another server writes it, or OSError."""
        self.folder = folder
        self.wanted = wanted
        self._share = wanted["share"]
        self._masks = Masks(wanted)
        self._takes = True
        self._waiting: deque[tuple[Record, int]] = deque()
        self._waiting_bytes = _Difference()
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

    # -- on the event loop's thread ----------------------------------------------------------------------------------
    @property
    def model(self) -> str:
        return self.wanted["model"]

    def chooses(self) -> bool:
        """Return whether the next request is one of the share that is captured."""
        return random.random() < self._share

    def take(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        """Copy a request and its last answer into the queue, or count it as dropped."""
        wanted, values = self.wanted, self._counters.values
        failed = isinstance(answer, ServingError)
        if not self._takes or (wanted["errors_only"] and not failed) or time.time() >= wanted["until"]:
            return
        accounts = wanted.get("accounts")
        if accounts and not _is_of(request, accounts):
            return
        arm = arm_of(request)
        version = answer.model_version if isinstance(answer, InferenceResponse) else _number(arm.version if arm else "")
        if wanted["versions"] and version not in wanted["versions"]:
            return
        asked = request.asked
        outputs = answer.outputs if isinstance(answer, InferenceResponse) else {}
        values[CHOSEN] += 1
        if request.stream is not None or not (final and on_host(asked.inputs) and on_host(outputs)):
            values[UNFIT] += 1
            return
        if isinstance(answer, InferenceResponse) and (answer.in_shared_memory is not None or asked.output_targets):
            values[UNFIT] += 1
            return
        size = size_of(asked.inputs) + size_of(outputs)
        if size > MAX_REQUEST_BYTES:
            values[LARGE] += 1
            return
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes.value + size > MAX_WAITING_BYTES:
            values[FULL] += 1
            return
        record = Record(
            number=values[CHOSEN],
            id=asked.id[:MAX_TEXT],
            at=time.time(),
            version=version,
            arm=arm.arm if arm is not None else "",
            error=answer.message[:MAX_TEXT] if isinstance(answer, ServingError) else None,
            latency_us=max(0, time.monotonic_ns() - request.arrival_ns) // 1000,
            inputs=_copies(asked.inputs),
            outputs=_copies(outputs),
        )
        self._waiting_bytes.added += size
        self._waiting.append((record, size))

    # -- on the writer's thread --------------------------------------------------------------------------------------
    def work(self, now: float, flush: bool = False) -> None:
        """Write what is due, tell the counts, and end the capture if its time is over or its bytes are used."""
        if not self.folder.is_dir():
            self.ended, self._takes = "deleted", False
            self._counters.values[STORAGE] += len(self._take_waiting()[0])
            return
        over = "stopped" if self.wanted["stopped"] else "time" if now >= self.wanted["until"] else ""
        if not self._waiting:
            self._oldest_s = now
        many = self._waiting_bytes.value >= FLUSH_BYTES or len(self._waiting) >= FLUSH_ROWS
        if self._waiting and (flush or over or many or now - self._oldest_s >= FLUSH_S or now < self._oldest_s):
            self._flush()
            self._oldest_s = now
        if self._bytes >= self.wanted["bytes"]:
            over = "bytes"
        if over:
            self.ended, self._takes = over, False
            self._flush()
        if flush or over or not self._told_at <= now < self._told_at + TELL_S:
            self._tell(now)

    def close(self) -> None:
        """Write what waits, and let another server continue the capture, unless it has ended."""
        self._takes = False
        if self.ended != "deleted":
            self.work(time.time(), flush=True)
        self._counters.close(forget=bool(self.ended))

    def _flush(self) -> None:
        while self._waiting:
            records, size = self._take_waiting()
            for run in alike(records):
                self._write(run)
            self._waiting_bytes.removed += size

    def _take_waiting(self) -> tuple[list[Record], int]:
        """Take the requests of one file from the queue, and return them with their bytes, which still count as waiting."""
        records: list[Record] = []
        size = 0
        while self._waiting and len(records) < FLUSH_ROWS and size < FLUSH_BYTES:
            record, one = self._waiting.popleft()
            records.append(record)
            size += one
        return records, size

    def _write(self, records: list[Record]) -> None:
        """Write one file. If that fails, its requests are dropped."""
        try:
            for record in records:
                self._masks.apply(record)
            content = encoded(records, self._masks.dropped_inputs, self._masks.dropped_outputs)
            if disk_usage(self.folder)[2] < self.wanted["reserve"] + len(content):
                raise OSError(0, "the disk is nearly full")
            write_atomic(self.folder / file_name(records[0].number, len(records)), content, mode=0o600)
        except BaseException as error:  # the package of Parquet panics at some faults: a panic is no Exception
            self._counters.values[STORAGE] += len(records)
            trouble = _words(error)
            if trouble != self._trouble:
                log.warning(
                    "requests of the capture %s of model '%s' are dropped: %s", self.folder.name, self.model, trouble
                )
            self._trouble = trouble
            return
        self._trouble = ""
        self._written += len(records)
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


class CaptureObserver(QuietObserver):
    """Hands one request with its last answer to the captures that chose it."""

    __slots__ = ("_captures",)

    def __init__(self, captures: list[Capture]) -> None:
        self._captures = captures

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        captures, self._captures = self._captures, []
        for capture in captures:
            capture.take(request, answer, final)


class _Difference:
    """A number that one thread increases and another decreases."""

    __slots__ = ("added", "removed")

    def __init__(self) -> None:
        self.added = self.removed = 0

    @property
    def value(self) -> int:
        return self.added - self.removed


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, because the memory of a request's tensors may be reused after the answer."""
    return {name: np.array(tensor) for name, tensor in tensors.items()}


def _is_of(request: InFlightRequest, accounts: list[str]) -> bool:
    """Return whether a request has a token of one of these names, or of one of these people."""
    for observer in request.observers:
        if isinstance(observer, Use):
            holder = observer.account.holder
            return holder.token in accounts or (holder.person != "" and holder.person in accounts)
    return False


def _words(error: BaseException) -> str:
    if isinstance(error, RepositoryError):
        return error.message
    return error.strerror or str(error) if isinstance(error, OSError) else type(error).__name__


def _number(version: str) -> int:
    return int(version) if version.isdecimal() and len(version) < 19 else 0

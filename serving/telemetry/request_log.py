"""The request log: one JSON line for each sampled request of a client. Off unless --request-log names a file.

A line never contains tensors or headers, nor error messages, which may quote them. A separate thread writes. If requests come
faster than the disk writes, lines are dropped and counted, so that memory stays bounded.
"""

import asyncio
import hashlib
import logging
import os
import random
import secrets
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

import orjson

from serving.cli.options import Options
from serving.core.errors import ServingError
from serving.core.in_flight import Execution, InFlightRequest, QuietObserver
from serving.core.response import Answer, InferenceResponse
from serving.core.rollout_arm import arm_of

log = logging.getLogger(__name__)

MAX_WAITING = 20_000  # lines that may wait to be written; about 10 MB
MAX_ID = 256  # characters of a request's id that are logged: the client chooses the id
_LINES_AT_ONCE = 1000


class Line(NamedTuple):
    """The content of a line. time_ns: when the request arrived, in unix time."""

    time_ns: int
    fields: dict[str, int | str | None]


class RequestLog:
    """Writes the log. `observe` is called on the event loop's thread, for each request that a frontend accepts."""

    def __init__(
        self, path: Path | None, sample: float = 1.0, hash_clients: bool = False, max_waiting: int = MAX_WAITING
    ) -> None:
        """path: the file, or None for standard output. Raises OSError if the file cannot be opened."""
        self._sample = sample
        self._salt = secrets.token_bytes(16) if hash_clients else b""
        self._max_waiting = max_waiting
        self._waiting: SimpleQueue[Line | None] = SimpleQueue()
        self._writer = _Writer(path, self._waiting)
        self._writer.start()

    @classmethod
    def from_options(cls, options: Options) -> "RequestLog | None":
        if not options.request_log:
            return None
        path = None if options.request_log == "-" else Path(options.request_log)
        return cls(path, options.request_log_sample, options.request_log_client == "hashed")

    @property
    def dropped(self) -> int:
        """The number of lines lost since the start, because the disk was too slow or failed."""
        return self._writer.refused + self._writer.failed

    def observe(self, request: InFlightRequest, protocol: str, transport: asyncio.BaseTransport | None) -> None:
        """Log the request after its last answer, if it is sampled."""
        if self._sample < 1 and random.random() >= self._sample:
            return
        client = self._client(transport) if self._salt else ""
        request.observe(_Entry(self, protocol, client))

    def write(self, line: Line) -> None:
        if self._waiting.qsize() >= self._max_waiting:
            self._writer.refused += 1
        else:
            self._waiting.put(line)

    def reopen(self) -> None:
        """Begin a new file of the same name. Called after the old file was moved away."""
        self._writer.reopen.set()

    def close(self, timeout_s: float = 2.0) -> None:
        """Write the waiting lines, as many as the disk takes within `timeout_s`."""
        self._waiting.put(None)
        self._writer.join(timeout_s)

    def _client(self, transport: asyncio.BaseTransport | None) -> str:
        """Return a hash of the client's address. The salt is random, so the hash distinguishes clients without identifying
        them."""
        peer = transport.get_extra_info("peername") if transport is not None else None
        return hashlib.blake2b(str(peer[0]).encode(), key=self._salt, digest_size=8).hexdigest() if peer else ""


class _Entry(QuietObserver):
    """Collects the line of one request. The requests of an ensemble's steps are not logged."""

    __slots__ = ("batch_size", "client", "compute_ns", "log", "protocol", "queue_ns", "responses")

    def __init__(self, log: RequestLog, protocol: str, client: str) -> None:
        self.log = log
        self.protocol = protocol
        self.client = client
        self.queue_ns: int | None = None
        self.compute_ns: int | None = None
        self.batch_size: int | None = None
        self.responses = 0

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        self.queue_ns = execution.started_ns - request.queued_ns
        self.compute_ns = execution.ended_ns - execution.started_ns
        self.batch_size = execution.size

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        answered = isinstance(answer, InferenceResponse)
        self.responses += answered
        if not final:
            return
        took = time.monotonic_ns() - request.arrival_ns
        arm = arm_of(request)
        fields: dict[str, int | str | None] = {
            "protocol": self.protocol,
            "model": request.asked.model_name,
            "version": str(answer.model_version)
            if isinstance(answer, InferenceResponse)
            else (arm.version if arm is not None else "") or request.asked.model_version,
            "id": request.asked.id[:MAX_ID],
            "status": answer.code.value if isinstance(answer, ServingError) else "OK",
            "duration_us": took // 1000,
            "queue_us": None if self.queue_ns is None else self.queue_ns // 1000,
            "compute_us": None if self.compute_ns is None else self.compute_ns // 1000,
            "rows": request.batch_size,
            "batch_size": self.batch_size,
            "responses": self.responses,
        }
        if arm is not None:
            fields["arm"] = arm.arm
        if self.client:
            fields["client"] = self.client
        self.log.write(Line(time.time_ns() - took, fields))


class _Writer(threading.Thread):
    """Renders lines as JSON, and writes many at a time."""

    def __init__(self, path: Path | None, waiting: "SimpleQueue[Line | None]") -> None:
        super().__init__(name="request-log", daemon=True)
        self.reopen = threading.Event()
        self.refused = 0  # lines that were dropped because the queue was full; counted on the loop's thread
        self.failed = 0  # lines that could not be written; counted on this thread
        self._reported = 0  # how many of these lines the log has reported
        self._path = path
        self._waiting = waiting
        self._failing = False
        self._file = self._open()

    def run(self) -> None:
        ended = False
        while not ended:
            lines, ended = self._take()
            if self.reopen.is_set():
                self.reopen.clear()
                self._open_again()
            text = b"".join(map(_render, lines))
            lost, self._reported = self.refused + self.failed - self._reported, self.refused + self.failed
            if lost:
                text += _render(Line(time.time_ns(), {"dropped": lost}))
            self._write(text, len(lines))
        if self._path is not None:
            os.close(self._file)

    def _take(self) -> tuple[list[Line], bool]:
        """Wait for lines. Return them, and whether they are the last lines."""
        first = self._waiting.get()
        lines: list[Line] = []
        while first is not None:
            lines.append(first)
            if len(lines) == _LINES_AT_ONCE:
                return lines, False
            try:
                first = self._waiting.get_nowait()
            except Empty:
                return lines, False
        return lines, True

    def _write(self, text: bytes, lines: int) -> None:
        try:
            while text:
                text = text[os.write(self._file, text) :]
            self._failing = False
        except OSError as error:
            self.failed += lines
            if not self._failing:
                log.warning("the request log cannot be written: %s", error.strerror)
            self._failing = True

    def _open(self) -> int:
        if self._path is None:
            return sys.stdout.fileno()
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _open_again(self) -> None:
        if self._path is None:
            return
        try:
            fresh = self._open()
        except OSError as error:
            log.warning("the request log cannot be reopened and stays in its old file: %s", error.strerror)
            return
        os.close(self._file)
        self._file = fresh


def _render(line: Line) -> bytes:
    moment = datetime.fromtimestamp(line.time_ns / 1e9, UTC)
    return orjson.dumps({"time": moment} | line.fields, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_UTC_Z)

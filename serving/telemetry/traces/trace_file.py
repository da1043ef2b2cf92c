"""Trace files in Triton's format: JSON arrays of `log_frequency` traces in `<file>.0`, `<file>.1`, ..., or all in `<file>`.

Traces wait in memory until there are enough for a file, or until they have MAX_WAITING bytes. A separate thread appends them to
the file. If the disk is too slow, traces are dropped. Source: Triton, docs/protocol/extension_trace.md.
"""

import logging
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

from serving.core.in_flight import InFlightRequest, ReceiveTimes
from serving.telemetry.traces.request_trace import RequestTrace, TraceTree
from serving.telemetry.traces.trace_settings import Sampler, TraceSettings

log = logging.getLogger(__name__)

MAX_WAITING = 4 << 20  # bytes of traces that may wait for a file
MAX_WRITING = 64 << 20  # bytes that may wait for the disk


class TraceFile:
    """Samples requests, and writes their traces to files. Used on the event loop's thread."""

    def __init__(self, settings: TraceSettings) -> None:
        self._settings = settings
        self._writer = _Writer()
        self._main = _Output(Path(settings.file))
        self._numbered = 0
        self._ids = count(1)
        self._closed = False
        self._waiting: dict[Sampler, _PendingTraces] = {}
        self.active = settings.active
        settings.subscribe(self._settings_changed)

    def observe(self, request: InFlightRequest, protocol: str, received: ReceiveTimes) -> None:
        """Trace the request if it is sampled."""
        sampler = self._settings.sampler(request.asked.model_name)
        if sampler.takes_next():
            self.active = self._settings.active
            tree = TraceTree(sampler.levels, self._ids, lambda rows: self._add(sampler, rows))
            request.trace_sending(RequestTrace(tree, request, 0, protocol, received))

    def close(self) -> None:
        """Write the waiting traces."""
        for sampler, waiting in self._waiting.items():
            self._finish(waiting, bool(sampler.log_frequency))
        self._waiting = {}
        self._closed = True
        if self._main.begun:
            self._writer.write(self._main, [], whole=True)
        self._writer.close()

    def _add(self, sampler: Sampler, rows: list[bytes]) -> None:
        """Keep the rows of a complete trace until there are enough traces for a file."""
        if self._closed:
            return
        sampler.ended += 1
        waiting = self._waiting.get(sampler)
        if waiting is None:
            waiting = self._waiting[sampler] = _PendingTraces()
        waiting.traces += 1
        waiting.rows += rows
        waiting.size += sum(map(len, rows))
        if sampler.complete:
            del self._waiting[sampler]
            self._finish(waiting, bool(sampler.log_frequency) or not sampler.count)
        elif sampler.log_frequency and waiting.traces >= sampler.log_frequency:
            del self._waiting[sampler]
            self._finish(waiting, True)
        elif waiting.size >= MAX_WAITING:
            self._flush(waiting, bool(sampler.log_frequency) or sampler.count > 0)

    def _settings_changed(self) -> None:
        self.active = self._settings.active
        for sampler in [one for one in self._waiting if one.complete]:
            self._finish(self._waiting.pop(sampler), bool(sampler.log_frequency))

    def _flush(self, waiting: "_PendingTraces", numbered: bool) -> None:
        """Append the waiting traces to their file. More traces follow later."""
        if waiting.output is None:
            waiting.output = self._next_numbered() if numbered else self._main
        self._writer.write(waiting.output, waiting.rows)
        waiting.rows, waiting.size = [], 0

    def _finish(self, waiting: "_PendingTraces", numbered: bool) -> None:
        output = waiting.output or (self._next_numbered() if numbered else self._main)
        self._writer.write(output, waiting.rows, whole=output is not self._main)

    def _next_numbered(self) -> "_Output":
        self._numbered += 1
        return _Output(Path(f"{self._settings.file}.{self._numbered - 1}"))


class _PendingTraces:
    """The traces of one sampler that wait until there are enough for a file."""

    __slots__ = ("output", "rows", "size", "traces")

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.size = 0
        self.traces = 0  # the number of traces for the file, including those already written
        self.output: _Output | None = None  # the file, if it already has some of the traces


class _Output:
    """A trace file that is written in pieces."""

    __slots__ = ("begun", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = False

    def piece(self, rows: list[bytes], whole: bool) -> bytes:
        """Return the text that adds these rows to the file. whole: whether to close the array."""
        start = b"[" if not self.begun else b"," if rows else b""
        return start + b",\n".join(rows) + (b"]" if whole else b"")


class _Writer:
    """Writes on a thread, and counts the bytes that wait for it."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "trace-file")
        self._writing: deque[tuple[Future[None], int]] = deque()
        self._size = 0
        self._warned = False

    def write(self, output: _Output, rows: list[bytes], whole: bool = False) -> None:
        while self._writing and self._writing[0][0].done():
            self._size -= self._writing.popleft()[1]
        if self._size > MAX_WRITING:
            if not self._warned:
                log.warning("the disk is too slow for the trace file: some traces are lost")
            self._warned = True
            rows = []
        text = output.piece(rows, whole)
        future = self._thread.submit(_save, output.path, "ab" if output.begun else "wb", text)
        output.begun = True
        self._size += len(text)
        self._writing.append((future, len(text)))

    def close(self) -> None:
        self._thread.shutdown()


def _save(path: Path, mode: str, text: bytes) -> None:
    try:
        with path.open(mode) as file:
            file.write(text)
    except OSError as error:
        log.warning("a trace file cannot be written: %s", error.strerror)

"""Traces as Triton writes them: a JSON array in which each traced request says who it is and when each phase began.

[{"id": 1, "model_name": ..., "model_version": ..., "request_id": ...}, {"id": 1, "timestamps": [{"name": ..., "ns": ...}]}]
`ns` is of the monotonic clock. Source: Triton, docs/user_guide/trace.md. Files are written by a thread of their own.
"""

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from serving.batch import Batch
from serving.errors import ServingError
from serving.request import InferenceRequest, InferenceResponse
from serving.trace_settings import Sampler, TraceSettings

log = logging.getLogger(__name__)

MAX_WAITING = 1000  # traces in memory; without a log frequency they are appended to the file when there are so many
_RECEIVED = {"http": "HTTP_RECV_END", "grpc": "GRPC_WAITREAD_END"}
_SENDING = {"http": "HTTP_SEND_START", "grpc": "GRPC_SEND_START"}


class TraceFile:
    """Used on the event loop's thread."""

    def __init__(self, settings: TraceSettings) -> None:
        self.settings = settings
        self.active = settings.active
        self._ids = count(1)
        self._waiting: list[bytes] = []
        self._file_number = 0
        self._begun = False  # the file without a number
        self._writer = ThreadPoolExecutor(1, "trace-file")
        settings.on_change = self._settings_changed

    def observe(self, request: InferenceRequest, protocol: str) -> None:
        """Trace this request if it is its turn."""
        sampler = self.settings.sampler(request.model_name)
        if sampler.takes_next():
            self.active = self.settings.active
            self.trace(request, protocol, sampler, 0)

    def trace(self, request: InferenceRequest, protocol: str, sampler: Sampler, parent: int) -> None:
        request.observers = (*request.observers, _Trace(self, protocol, sampler, next(self._ids), parent))

    def add(self, text: bytes, sampler: Sampler) -> None:
        """A trace is complete."""
        if not self.settings.file:
            return
        self._waiting.append(text)
        waiting = len(self._waiting)
        if (sampler.log_frequency and waiting >= sampler.log_frequency) or not sampler.count:
            self._write_numbered()
        elif waiting >= MAX_WAITING:
            self._append(b"")

    def add_late(self, text: bytes) -> None:
        """More of a trace that was complete: it goes with the next ones."""
        if self.settings.file:
            self._waiting.append(text)

    def close(self) -> None:
        """Write what waits."""
        if self._waiting or self._begun:
            self._append(b"]")
        self._writer.shutdown()

    def _settings_changed(self) -> None:
        self.active = self.settings.active

    def _write_numbered(self) -> None:
        path = Path(f"{self.settings.file}.{self._file_number}")
        self._file_number += 1
        lines, self._waiting = self._waiting, []
        self._writer.submit(_save, path, "wb", b"[" + b",".join(lines) + b"]")

    def _append(self, end: bytes) -> None:
        lines, self._waiting = self._waiting, []
        start = b"," if self._begun and lines else b"" if self._begun else b"["
        mode = "ab" if self._begun else "wb"
        self._begun = True
        self._writer.submit(_save, Path(self.settings.file), mode, start + b",".join(lines) + end)


def _save(path: Path, mode: str, text: bytes) -> None:
    try:
        with path.open(mode) as file:
            file.write(text)
    except OSError as error:
        log.warning("a trace file cannot be written: %s", error.strerror)


class _Trace:
    """One traced request, filled while it runs."""

    __slots__ = ("answered_already", "file", "id", "moments", "parent", "protocol", "sampler")

    def __init__(self, file: TraceFile, protocol: str, sampler: Sampler, identifier: int, parent: int) -> None:
        self.file = file
        self.protocol = protocol
        self.sampler = sampler
        self.id = identifier
        self.parent = parent
        self.moments: list[tuple[str, int]] = []
        self.answered_already = False  # the last answer of a decoupled model may come before its batch ends

    def step(self, child: InferenceRequest) -> None:
        """A request that an ensemble makes of this one, or a model for it."""
        self.file.trace(child, "", self.sampler, self.id)

    def context(self) -> str:
        return ""

    def executed(self, request: InferenceRequest, batch: Batch) -> None:
        moments = [
            ("COMPUTE_START", batch.started_ns),
            ("COMPUTE_INPUT_END", batch.input_done_ns),
            ("COMPUTE_OUTPUT_START", batch.infer_done_ns),
            ("COMPUTE_END", batch.ended_ns),
        ]
        if self.answered_already:
            self.file.add_late(orjson.dumps(self._stamps(moments)))
        else:
            self.moments = moments

    def answered(
        self, request: InferenceRequest, response: "InferenceResponse | ServingError | None", final: bool
    ) -> None:
        if not final:
            return
        self.answered_already = True
        now = time.monotonic_ns()
        moments = [("REQUEST_START", request.arrival_ns), ("QUEUE_START", request.queued_ns), *self.moments]
        moments.append(("REQUEST_END", now))
        if self.protocol in _RECEIVED:
            moments = [(_RECEIVED[self.protocol], request.arrival_ns), *moments, (_SENDING[self.protocol], now)]
        head: dict[str, Any] = {"id": self.id, "model_name": request.model_name}
        if isinstance(response, InferenceResponse):
            head["model_version"] = response.model_version
        if request.id:
            head["request_id"] = request.id
        if self.parent:
            head["parent_id"] = self.parent
        # An id may hold half a surrogate pair, which JSON cannot.
        text = orjson.dumps([_clean(head), self._stamps(moments)])
        self.file.add(text[1:-1], self.sampler)

    def _stamps(self, moments: list[tuple[str, int]]) -> dict[str, Any]:
        return {"id": self.id, "timestamps": [{"name": name, "ns": moment} for name, moment in moments if moment]}


def _clean(head: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in head.items()
    }

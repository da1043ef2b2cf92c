"""The slowest and the failed requests of a version, kept for some minutes until the dashboard reads them.

A request becomes part of the open span. A span ends after a minute, or earlier if somebody reads. Each span keeps the MOST
slowest requests, the first MOST failed ones, and all failures by cause. Nothing is kept of tensors or headers. A failed request
has its error's message, which may quote them.

A fast request costs two comparisons for each batch (`floor_ns`, `until_ns`). Used on the event loop's thread.
"""

import heapq
import re
import time
import uuid
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, TypedDict

import orjson

from serving.core.response import InferenceResponse
from serving.core.rollout_arm import arm_of

if TYPE_CHECKING:
    from serving.core.batch import Batch
    from serving.core.errors import ServingError
    from serving.core.in_flight import InFlightRequest

INSTANCE = uuid.uuid4().hex  # of this process: the numbers of spans begin again with the next one
SPAN_NS = 60_000_000_000
SHORTEST_NS = 5_000_000_000  # a reader ends no shorter span
KEPT_SPANS = 3  # the spans of a version that are kept; older ones are dropped unread
MOST = 5
MOST_CAUSES = 20
MAX_ID = 128  # characters of a request's id, which the client chooses
MAX_MESSAGE = 500
OTHER_CAUSES = "other causes"

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBERS = re.compile(r"\d[\d.]*(?:, ?-?\d[\d.]*)*")
_numbers = count(1)


class Noted(TypedDict):
    """One request. at: when it arrived, in unix seconds. Times in us, None if not measured. code, reason, cause, message: of a
    failed request, "" for a slow one. trace: the id of its OpenTelemetry trace, "" without one."""

    at: float
    id: str
    duration_us: int
    queue_us: int | None
    input_us: int | None
    infer_us: int | None
    output_us: int | None
    rows: int
    batch_size: int | None
    arm: str
    trace: str
    code: str
    reason: str
    cause: str
    message: str


class Cause(TypedDict):
    """Failures with the same cause. cause: a message without its numbers and quoted parts. first, last: in unix seconds."""

    cause: str
    code: str
    reason: str
    count: int
    first: float
    last: float


class Span(TypedDict):
    """One span of a version. number: grows over all spans of the process. start, end: in unix seconds."""

    number: int
    start: float
    end: float
    slow: list[Noted]
    failed: list[Noted]
    causes: list[Cause]


@lru_cache(maxsize=64)
def cause_of(message: str) -> str:
    """Return a message without what differs from one request to the next: numbers and quoted parts."""
    return _NUMBERS.sub("#", _QUOTED.sub("'...'", message[:MAX_MESSAGE]))


class NotedRequests:
    """The open span and the last ended ones. floor_ns: a request that took longer is among the slowest of the open span.
    until_ns: when the open span ends (monotonic ns), 0 without an open span."""

    def __init__(self) -> None:
        self.floor_ns = 0
        self.until_ns = 0
        self._start = 0.0
        self._slow: list[tuple[int, int, Noted]] = []  # a heap; the second item decides between equal times
        self._failed: list[Noted] = []
        self._causes: dict[tuple[str, str, str], Cause] = {}
        self._ended: list[Span] = []

    def batch_done(self, batch: "Batch") -> None:
        """Note those requests of a batch that are among the slowest. Called if one of them is, or if the span ends."""
        now = batch.ended_ns
        if now >= self.until_ns:
            self._begin(now)
        for request, answer in zip(batch.requests, batch.responses, strict=True):
            took = now - request.arrival_ns
            if took <= self.floor_ns or request.mirrored or not isinstance(answer, InferenceResponse):
                continue
            if request not in batch.rescheduled:
                self._keep_slow(took, noted(request, took, batch))

    def succeeded(self, request: "InFlightRequest", took: int, now: int) -> None:
        """Note a request that no batch has answered at its end, such as one to an ensemble, if it is among the slowest."""
        if now >= self.until_ns:
            self._begin(now)
        if took > self.floor_ns:
            self._keep_slow(took, noted(request, took, None))

    def failed(
        self, request: "InFlightRequest", reason: str, error: "ServingError | None", batch: "Batch | None"
    ) -> None:
        """Note a failure, and count it under its cause."""
        now = time.monotonic_ns()
        if now >= self.until_ns:
            self._begin(now)
        message = "" if error is None else error.message[:MAX_MESSAGE]
        code = "" if error is None else error.code.value
        cause = cause_of(message)
        key = (cause, code, reason)
        if key not in self._causes and len(self._causes) >= MOST_CAUSES:
            cause = OTHER_CAUSES
            key = (cause, "", "")
        at = time.time()
        found = self._causes.get(key)
        if found is None:
            self._causes[key] = {"cause": cause, "code": key[1], "reason": key[2], "count": 1, "first": at, "last": at}
        else:
            found["count"] += 1
            found["last"] = at
        if len(self._failed) < MOST:
            one = noted(request, now - request.arrival_ns, batch)
            one["code"], one["reason"], one["cause"], one["message"] = code, reason, cause, message
            self._failed.append(one)

    def spans(self, after: int) -> list[Span]:
        """Return the ended spans with higher numbers than `after`. The open span is ended if it is long enough."""
        now = time.monotonic_ns()
        if self.until_ns and now >= self.until_ns - SPAN_NS + SHORTEST_NS:
            self._end()
        return [span for span in self._ended if span["number"] > after]

    def _keep_slow(self, took: int, one: Noted) -> None:
        heapq.heappush(self._slow, (took, next(_numbers), one))
        if len(self._slow) > MOST:
            heapq.heappop(self._slow)
        if len(self._slow) == MOST:
            self.floor_ns = self._slow[0][0]

    def _begin(self, now: int) -> None:
        self._end()
        self.until_ns = now + SPAN_NS
        self._start = time.time()

    def _end(self) -> None:
        if self._slow or self._failed:
            slow = [one for _, _, one in sorted(self._slow, key=lambda entry: -entry[0])]
            causes = list(self._causes.values())
            span: Span = {
                "number": next(_numbers),
                "start": self._start,
                "end": time.time(),
                "slow": slow,
                "failed": self._failed,
                "causes": causes,
            }
            self._ended = [*self._ended, span][-KEPT_SPANS:]
        self.floor_ns = self.until_ns = 0
        self._slow, self._failed, self._causes = [], [], {}


def noted(request: "InFlightRequest", took: int, batch: "Batch | None") -> Noted:
    """Return what is kept of a request that took so many ns. batch: the one that ran it, or None."""
    queue = infer = input_us = output = size = None
    if batch is not None and batch.ended_ns:
        # If the backend reports no phases, all of the time is inference.
        infer_from = batch.input_done_ns or batch.started_ns
        infer_to = batch.infer_done_ns or batch.ended_ns
        queue = max(0, batch.started_ns - request.queued_ns) // 1000
        input_us, infer = (infer_from - batch.started_ns) // 1000, (infer_to - infer_from) // 1000
        output, size = (batch.ended_ns - infer_to) // 1000, batch.size
    arm = arm_of(request)
    return {
        "at": time.time() - took / 1e9,
        "id": request.asked.id[:MAX_ID],
        "duration_us": took // 1000,
        "queue_us": queue,
        "input_us": input_us,
        "infer_us": infer,
        "output_us": output,
        "rows": request.batch_size,
        "batch_size": size,
        "arm": "" if arm is None else arm.arm,
        "trace": _trace_of(request),
        "code": "",
        "reason": "",
        "cause": "",
        "message": "",
    }


def _trace_of(request: "InFlightRequest") -> str:
    """Return the id of a request's trace, from the W3C trace context that its observers give to models."""
    for observer in request.observers:
        context = observer.context()
        if context:
            parent = str(orjson.loads(context).get("traceparent", "")).split("-")
            return parent[1] if len(parent) == 4 else ""
    return ""

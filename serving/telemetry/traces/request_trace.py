"""Makes the rows of a trace file for one sampled request, and for the requests that models send to answer it.

[{"id": 1, "model_name": ..., "model_version": ..., "request_id": ...}, {"id": 1, "timestamps": [{"name": ..., "ns": ...}]},
 {"id": 1, "activity": ..., "tensor": {...}}]
The request of a step also has "parent_id", the id of the ensemble's request. "ns" is a time of the monotonic clock.
Source: Triton, docs/user_guide/trace.md.
"""

import time
from collections.abc import Callable, Iterator

import orjson

from serving.core.datatypes import Tensor
from serving.core.errors import ServingError
from serving.core.in_flight import Execution, InFlightRequest, ReceiveTimes
from serving.core.response import Answer, InferenceResponse
from serving.core.rollout_arm import arm_of
from serving.telemetry.traces.frontend_timestamps import FrontendTimestamps
from serving.telemetry.traces.trace_tensors import tensor_rows

MAX_TENSOR_BYTES = 8 << 20  # bytes of tensors that are written for one sampled request; further tensors are counted

Timestamp = tuple[str, int]


class TraceTree:
    """A sampled request, and the requests that models send to answer it. on_complete: gets the rows when all have ended."""

    __slots__ = ("ids", "left", "on_complete", "open", "rows", "tensors", "timestamps")

    def __init__(self, levels: tuple[str, ...], ids: Iterator[int], on_complete: Callable[[list[bytes]], None]) -> None:
        """ids: yields the ids of requests."""
        self.ids = ids
        self.timestamps = "TIMESTAMPS" in levels
        self.tensors = "TENSORS" in levels
        self.on_complete = on_complete
        self.rows: list[bytes] = []
        self.open = 0
        self.left = MAX_TENSOR_BYTES

    def close(self, rows: list[bytes]) -> None:
        self.rows += rows
        self.open -= 1
        if not self.open:
            self.on_complete(self.rows)


class RequestTrace(FrontendTimestamps):
    """Observes one request, and collects its timestamps and tensors.

    The trace is complete when the last answer has been sent and the batch has run. A decoupled model may answer before its
    batch has run.
    """

    __slots__ = ("awaits_batch", "given", "head", "id", "left_out", "rows", "timestamps", "tree")

    def __init__(
        self,
        tree: TraceTree,
        request: InFlightRequest,
        parent: int = 0,
        protocol: str = "",
        received: ReceiveTimes = None,
    ) -> None:
        super().__init__(protocol)
        self.tree = tree
        self.id = next(tree.ids)
        self.head: dict[str, int | str] = {"id": self.id, "model_name": request.asked.model_name, "model_version": -1}
        if request.asked.id:
            self.head["request_id"] = request.asked.id.encode(
                "utf-8", "replace"
            ).decode()  # JSON has no lone surrogates
        if parent:
            self.head["parent_id"] = parent
        self.timestamps: list[Timestamp] = []
        self.rows: list[bytes] = []
        self.left_out = 0
        self.awaits_batch = False
        self.receive(received, request.arrival_ns)
        self.add_timestamp("REQUEST_START", request.arrival_ns)
        self.given = frozenset(request.inputs)
        self._add_tensors("TENSOR_QUEUE_INPUT", request.inputs)
        tree.open += 1
        request.observe(self)

    # -- as an observer --------------------------------------------------------------------------------------------
    def step(self, child: InFlightRequest) -> None:
        RequestTrace(self.tree, child, self.id)

    def context(self) -> str:
        return ""

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        """Add the execution, and the inputs that the client did not send: controls and states of its sequence."""
        self._add_tensors("TENSOR_BACKEND_INPUT", {n: t for n, t in request.inputs.items() if n not in self.given})
        self._add_queue(request)
        self.add_timestamp("COMPUTE_START", execution.started_ns)
        self.add_timestamp("COMPUTE_INPUT_END", execution.input_done_ns or execution.started_ns)
        self.add_timestamp("COMPUTE_OUTPUT_START", execution.infer_done_ns or execution.ended_ns)
        self.add_timestamp("COMPUTE_END", execution.ended_ns)
        if self.awaits_batch:
            self.awaits_batch = False
            self.release()

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        if isinstance(answer, InferenceResponse):
            self.head["model_version"] = answer.model_version
            self._add_tensors("TENSOR_BACKEND_OUTPUT", answer.outputs)
        if not final:
            return
        if (arm := arm_of(request)) is not None:
            self.head["arm"] = arm.arm
            if arm.version:
                self.head["model_version"] = int(arm.version)
        if request.stream is not None and request.stream.executing:
            self.awaits_batch = True
            self.hold()
        self._add_queue(request)
        self.add_timestamp("REQUEST_END", time.monotonic_ns())
        self.answered_last()

    def _add_queue(self, request: InFlightRequest) -> None:
        """Add the timestamp at which the request was queued, unless it is already there.

        `executed` and `answered` both call this: requests of ensembles, and requests that fail early, are never executed, and a
        decoupled model may answer before the execution has ended.
        """
        queued = ("QUEUE_START", request.queued_ns)
        if request.queued_ns and queued not in self.timestamps:
            self.add_timestamp(*queued)

    # -- its rows --------------------------------------------------------------------------------------------------
    def add_timestamp(self, name: str, ns: int) -> None:
        if name == "INFER_RESPONSE_COMPLETE" and self.timestamps[-1][0] == "REQUEST_END":
            self.timestamps[-1:] = [(name, ns), ("REQUEST_END", ns)]  # in Triton, a request ends after its responses
        else:
            self.timestamps.append((name, ns))

    def _add_tensors(self, activity: str, tensors: dict[str, Tensor]) -> None:
        if not self.tree.tensors or not tensors:
            return
        if self.tree.left <= 0:
            self.left_out += len(tensors)
            return
        try:
            rows = tensor_rows(self.id, activity, tensors)
        except ServingError:  # the protocol has no datatype for a tensor; the client gets an error
            self.left_out += len(tensors)
            return
        self.tree.left -= sum(map(len, rows))
        self.rows += rows

    def complete(self) -> None:
        if self.left_out:
            self.head["tensors_left_out"] = self.left_out
        rows = [orjson.dumps(self.head)]
        if self.tree.timestamps:
            stamps = [{"name": name, "ns": ns} for name, ns in sorted(self.timestamps, key=lambda one: one[1])]
            rows.append(orjson.dumps({"id": self.id, "timestamps": stamps}))
        self.tree.close(rows + self.rows)

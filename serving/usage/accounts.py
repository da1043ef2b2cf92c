"""The counters of usage, and quotas. Used on the event loop's thread, for each request of a client with a token.

Account        a token of the auth file
    Use        what it has used of one model today; an observer of the requests
    Quota      limits that may be shared with other tokens of the same person or group

A request counts on the day (in UTC) on which it is answered.
"""

from collections.abc import Mapping

from numpy import ndarray

from repository.core.usage_log import Holder
from serving.core.datatypes import Tensor
from serving.core.in_flight import Execution, InFlightRequest, QuietObserver
from serving.core.response import Answer, InferenceResponse

# Indices of a Use's counters, in the order of repository.core.usage_log.COUNTERS.
REQUESTS, FAILED, REFUSED, ROWS, COMPUTE_NS, BYTES_IN, BYTES_OUT, TOKENS_IN, TOKENS_OUT = range(9)
# Outputs or parameters in which a model that generates text reports tokens, as with the vLLM and TensorRT-LLM backends.
INPUT_TOKENS, OUTPUT_TOKENS = "num_input_tokens", "num_output_tokens"


class Quota:
    """The limits of one token, person or group; 0 means no limit. Requests count when they are accepted; rows and compute time
    when they are known, so that requests under way may exceed these two limits.

    of: "token", "person" or "group". interval_ns: the time after which another request is allowed. slack_ns: how far requests
    may be ahead of the rate, for bursts of about a second.
    """

    __slots__ = (
        "_due_ns",
        "compute_ns",
        "compute_ns_per_day",
        "interval_ns",
        "name",
        "of",
        "requests",
        "requests_per_day",
        "rows",
        "rows_per_day",
        "slack_ns",
    )

    def __init__(self, of: str, name: str) -> None:
        self.of = of
        self.name = name
        self.requests_per_day = self.rows_per_day = self.compute_ns_per_day = 0
        self.interval_ns = self.slack_ns = 0
        self.requests = self.rows = self.compute_ns = 0  # of today
        self._due_ns = 0  # when the next request is due at exactly the allowed rate (monotonic ns)

    def blocks(self, now_ns: int) -> bool:
        """Return whether a request must be refused now."""
        if self.interval_ns and self._due_ns - now_ns > self.slack_ns:
            return True
        if self.requests_per_day and self.requests >= self.requests_per_day:
            return True
        if self.rows_per_day and self.rows >= self.rows_per_day:
            return True
        return self.compute_ns_per_day > 0 and self.compute_ns >= self.compute_ns_per_day

    def take(self, now_ns: int) -> None:
        """Count an accepted request."""
        self.requests += 1
        if self.interval_ns:
            due_ns = self._due_ns
            self._due_ns = (due_ns if due_ns > now_ns else now_ns) + self.interval_ns

    def wait_ns(self, now_ns: int) -> int:
        """Return how long the rate still blocks, in ns; 0 or less if it does not."""
        return self._due_ns - now_ns - self.slack_ns if self.interval_ns else 0


class Account:
    """A token, by its SHA-256. uses: model -> what it has used today. requests, rows, compute_ns: its sums of today."""

    __slots__ = ("compute_ns", "digest", "holder", "quotas", "requests", "rows", "uses")

    def __init__(self, digest: str, holder: Holder) -> None:
        self.digest = digest
        self.holder = holder
        self.quotas: tuple[Quota, ...] = ()
        self.uses: dict[str, Use] = {}
        self.requests = self.rows = self.compute_ns = 0

    def add(self, requests: int, rows: int, compute_ns: int) -> None:
        """Add earlier uses of today, as after a restart."""
        self.requests += requests
        self.rows += rows
        self.compute_ns += compute_ns

    def blocked_by(self, now_ns: int) -> Quota | None:
        """Return the quota because of which a request is refused now. If none blocks, count the request in all, and return
        None."""
        quotas = self.quotas
        for quota in quotas:
            if quota.blocks(now_ns):
                return quota
        for quota in quotas:
            quota.take(now_ns)
        return None


class Steps(QuietObserver):
    """Observes the requests that models make for a client's request: their compute time counts, and nothing else."""

    __slots__ = ("use",)

    def __init__(self, use: "Use") -> None:
        self.use = use

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        self.use.executed(request, execution)

    def step(self, child: InFlightRequest) -> None:
        child.observe(self)


class Use(QuietObserver):
    """What a token has used of a model today. One object observes all requests, so observing needs no memory.

    cells: the counters, 8 bytes each. changed: the list in which it is noted for the next record of the log.
    """

    __slots__ = ("account", "cells", "changed", "model", "noted", "steps")

    def __init__(self, account: Account, model: str, cells: "memoryview[int]", changed: "list[Use]") -> None:
        self.account = account
        self.model = model
        self.cells = cells
        self.changed = changed
        self.noted = False
        self.steps = Steps(self)

    def note(self) -> None:
        if not self.noted:
            self.noted = True
            self.changed.append(self)

    def refused(self) -> None:
        self.cells[REFUSED] += 1
        self.note()

    def executed(self, request: InFlightRequest, execution: Execution) -> None:
        """Count the request's part of the time that its batch took, by its rows."""
        took = execution.ended_ns - execution.started_ns
        size = execution.size
        if size > request.batch_size:
            took = took * request.batch_size // size
        self.cells[COMPUTE_NS] += took
        account = self.account
        account.compute_ns += took
        for quota in account.quotas:
            quota.compute_ns += took
        if not self.noted:
            self.note()

    def step(self, child: InFlightRequest) -> None:
        child.observe(self.steps)

    def answered(self, request: InFlightRequest, answer: Answer, final: bool) -> None:
        cells = self.cells
        if isinstance(answer, InferenceResponse):
            outputs = answer.outputs
            cells[BYTES_OUT] += size_of(outputs)
            if INPUT_TOKENS in outputs or OUTPUT_TOKENS in outputs or answer.parameters:
                self._count_tokens(answer)
        if not final:
            return
        cells[BYTES_IN] += size_of(request.asked.inputs)
        account = self.account
        account.requests += 1
        if isinstance(answer, Exception):
            cells[FAILED] += 1
        else:
            rows = request.batch_size
            cells[REQUESTS] += 1
            cells[ROWS] += rows
            account.rows += rows
            for quota in account.quotas:
                quota.rows += rows
        if not self.noted:
            self.note()

    def _count_tokens(self, answer: InferenceResponse) -> None:
        self.cells[TOKENS_IN] += token_count(answer, INPUT_TOKENS)
        self.cells[TOKENS_OUT] += token_count(answer, OUTPUT_TOKENS)


def token_count(response: InferenceResponse, name: str) -> int:
    """Return a token count that a response reports, the sum over its rows; 0 if it does not have this count."""
    array = response.outputs.get(name)
    if isinstance(array, ndarray):
        return max(0, int(array.sum())) if array.size and array.dtype.kind in "iu" else 0
    value = response.parameters.get(name)
    return max(0, value) if isinstance(value, int) else 0


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of tensors in bytes; of BYTES tensors only the contents of the elements."""
    size = 0
    for tensor in tensors.values():
        if tensor.dtype.kind == "O" and isinstance(tensor, ndarray):
            for element in tensor.reshape(-1):
                size += len(element)
        else:
            size += tensor.nbytes
    return size

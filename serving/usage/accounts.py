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
    when they are known, so that requests under way may exceed these two limits. Only what is limited is counted.

    of: "token", "person" or "group". interval_ns: the time after which another request is allowed. slack_ns: how far requests
    may be ahead of the rate, for bursts of about a second. used_up: whether a limit of today is reached.
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
        "used_up",
    )

    def __init__(self, of: str, name: str) -> None:
        self.of = of
        self.name = name
        self.requests_per_day = self.rows_per_day = self.compute_ns_per_day = 0
        self.interval_ns = self.slack_ns = 0
        self.requests = self.rows = self.compute_ns = 0  # of today
        self.used_up = False
        self._due_ns = 0  # when the next request is due at exactly the allowed rate (monotonic ns); 0 without a rate

    def judge(self) -> None:
        """Set `used_up` after a limit or a count has changed."""
        self.used_up = (
            0 < self.requests_per_day <= self.requests
            or 0 < self.rows_per_day <= self.rows
            or 0 < self.compute_ns_per_day <= self.compute_ns
        )
        if not self.interval_ns:
            self._due_ns = 0

    def take(self, now_ns: int) -> None:
        """Count an accepted request."""
        if self.requests_per_day:
            self.requests += 1
            if self.requests >= self.requests_per_day:
                self.used_up = True
        if self.interval_ns:
            due_ns = self._due_ns
            self._due_ns = (due_ns if due_ns > now_ns else now_ns) + self.interval_ns

    def add_rows(self, rows: int) -> None:
        self.rows += rows
        if self.rows >= self.rows_per_day:
            self.used_up = True

    def add_compute(self, took_ns: int) -> None:
        self.compute_ns += took_ns
        if self.compute_ns >= self.compute_ns_per_day:
            self.used_up = True

    def wait_ns(self, now_ns: int) -> int:
        """Return how long the rate still blocks, in ns; 0 or less if it does not."""
        return self._due_ns - now_ns - self.slack_ns if self.interval_ns else 0


class Account:
    """A token, by its SHA-256. uses: model -> what it has used today.

    quotas: all of the token. of_requests, of_rows, of_compute: those that limit requests (by day or rate), rows, compute time.
    """

    __slots__ = (
        "digest",
        "holder",
        "of_compute",
        "of_requests",
        "of_rows",
        "quotas",
        "uses",
    )

    def __init__(self, digest: str, holder: Holder) -> None:
        self.digest = digest
        self.holder = holder
        self.uses: dict[str, Use] = {}
        self.bind(())

    def bind(self, quotas: tuple[Quota, ...]) -> None:
        """Take over the quotas of the token, or their changed limits."""
        self.quotas = quotas
        self.of_requests = tuple([one for one in quotas if one.requests_per_day or one.interval_ns])
        self.of_rows = tuple([one for one in quotas if one.rows_per_day])
        self.of_compute = tuple([one for one in quotas if one.compute_ns_per_day])

    def used(self, *counters: int) -> int:
        """Return the sum of some counters over all models."""
        return sum([use.cells[counter] for use in self.uses.values() for counter in counters])

    def blocked_by(self, now_ns: int) -> Quota | None:
        """Return the quota because of which a request is refused now. If none blocks, count the request in all, and return
        None."""
        for quota in self.quotas:
            if quota.used_up or quota._due_ns - quota.slack_ns > now_ns:
                return quota
        for quota in self.of_requests:
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
        for quota in self.account.of_compute:
            quota.add_compute(took)
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
        if isinstance(answer, Exception):
            cells[FAILED] += 1
        else:
            rows = request.batch_size
            cells[REQUESTS] += 1
            cells[ROWS] += rows
            for quota in self.account.of_rows:
                quota.add_rows(rows)
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
        if tensor.dtype.char == "O" and isinstance(tensor, ndarray):
            size += sum(map(len, tensor.reshape(-1).tolist()))
        else:
            size += tensor.nbytes
    return size

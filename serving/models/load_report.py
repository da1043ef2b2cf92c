"""What a load of a model goes through: shown while it is under way, and told in its answer.

    check -> memory -> load -> warm -> golden -> switch -> drain

check    configurations are completed from the models' files, and checked
memory   what is to be built has to fit into what is available
load     of every version that is to serve newly the weights are read and the instances made
warm     they run their warm-up requests
golden   they answer the golden requests, as expected; what goes on serving, those that it has not answered yet
switch   requests go to what is new from here on; what stays takes its new configuration
drain    what served before finishes its requests; the load does not wait for it

The first step that fails is the last one. A load that finds nothing changed has none, and one that changes a model in place has
no steps from memory to warm.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from serving.core.errors import ServingError
from serving.telemetry.statistics import Loading

JsonObject = dict[str, object]


class Step(StrEnum):
    """See the module's docstring."""

    CHECK = "check"
    MEMORY = "memory"
    LOAD = "load"
    WARM = "warm"
    GOLDEN = "golden"
    SWITCH = "switch"
    DRAIN = "drain"


class GoldenResult(NamedTuple):
    """What became of one golden request on one version; `detail` is a sentence about it."""

    name: str
    version: int
    passed: bool
    detail: str
    ms: float


@dataclass(slots=True)
class StepReport:
    """One step that a load went through. checks: of golden requests. under_way: requests of what drains, as the load ends."""

    step: Step
    ms: float = 0.0
    failed: bool = False
    checks: list[GoldenResult] | None = None
    under_way: int | None = None

    def as_json(self) -> JsonObject:
        value: JsonObject = {"step": self.step.value, "ms": round(self.ms, 1)}
        if self.failed:
            value["failed"] = True
        if self.checks is not None:
            value["checks"] = [check._asdict() for check in self.checks]
        if self.under_way is not None:
            value["under_way"] = self.under_way
        return value


@dataclass(slots=True)
class LoadReport:
    """What a load has done, in the order of its steps."""

    release: int | None = None
    steps: list[StepReport] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        return {"release": self.release, "steps": [step.as_json() for step in self.steps]}


class LoadStopped(ServingError):
    """A load that failed at the last step of its report, or before the first one.

    reason: the message without Triton's words before it, for who knows which model it is about. handler_status: the
    HTTP status of a model whose own code could not be loaded; None where that was not why.
    """

    def __init__(
        self, error: ServingError, report: LoadReport, reason: str = "", handler_status: int | None = None
    ) -> None:
        super().__init__(error.code, error.message)
        self.handler_status = handler_status
        self.report = report
        self.reason = reason or error.message

    @property
    def worth_trying_again(self) -> bool:
        """Whether the same load may go better the next time: what golden requests find does not go away."""
        return not self.report.steps or self.report.steps[-1].step is not Step.GOLDEN


class LoadProgress:
    """A load under way. `versions`: the numbers of those that it is of. Used on the event loop's thread, but for `advance`."""

    def __init__(self, versions: Collection[int], release: int | None) -> None:
        self.versions = frozenset(versions)
        self.report = LoadReport(release)
        self.over = False  # what it replaced is freed
        self._release = release
        self._lock = threading.Lock()
        self._done = self._of = 0
        self._began = 0.0
        self._left: Callable[[], int] | None = None

    def begin(self, step: Step, of: int = 0) -> StepReport:
        """End the step before and begin this one. of: how many things it has to do; `expect` may add some."""
        self.end()
        self._done, self._of, self._began = 0, of, time.monotonic()
        report = StepReport(step)
        self.report.steps.append(report)
        return report

    def expect(self, more: int) -> None:
        """Count more things to do in this step."""
        with self._lock:
            self._of += more

    def advance(self) -> None:
        """Count one of them as done. Any thread."""
        with self._lock:
            self._done += 1

    def end(self, *, failed: bool = False) -> None:
        """End the step that is under way."""
        if self._began:
            step = self.report.steps[-1]
            step.ms, step.failed = (time.monotonic() - self._began) * 1000, failed
            self._began = 0.0

    def drain(self, left: Callable[[], int]) -> None:
        """Go on to the last step. left: tells how many requests are still under way on what served before."""
        count = left()
        self.begin(Step.DRAIN, count).under_way = count
        self.end()
        self._left = left

    def shown(self) -> Loading | None:
        """Return where the load is; None before its first step."""
        if not self.report.steps:
            return None
        done = self._done if self._left is None else max(0, self._of - self._left())
        return Loading(self._release, self.report.steps[-1].step.value, done, self._of)

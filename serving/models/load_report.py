"""The steps of a load, which are shown while it runs and listed in its answer.

    check -> memory -> load -> warm -> golden -> switch -> drain

check    configurations are completed from the models' files, and checked
memory   the new models have to fit into the memory that is available
load     the weights of the new models are read, and their instances are created
warm     the new models run their warm-up requests
golden   the new models have to answer the golden requests as expected; models that keep serving have to answer only the golden
         requests that they have not answered yet
switch   requests go to the new models from here on; models that keep serving take their new configuration
drain    replaced models finish their requests; the load does not wait for them

A load ends at the first step that fails. A load that finds nothing changed has no steps. A load that only reconfigures serving
models skips the steps from memory to warm.
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
    CHECK = "check"
    MEMORY = "memory"
    LOAD = "load"
    WARM = "warm"
    GOLDEN = "golden"
    SWITCH = "switch"
    DRAIN = "drain"


class GoldenResult(NamedTuple):
    """The result of one golden request to one version. `detail` is a sentence about it."""

    name: str
    version: int
    passed: bool
    detail: str
    ms: float


@dataclass(slots=True)
class StepReport:
    """One step of a load. checks: results of the golden requests. under_way: how many requests the replaced models still had
    when the load ended."""

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
    """The steps of a load in their order."""

    release: int | None = None
    steps: list[StepReport] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        return {"release": self.release, "steps": [step.as_json() for step in self.steps]}


class LoadStopped(ServingError):
    """Raised when a load fails, either at the last step of its report or before the first step.

    reason: the message without Triton's words before it, for callers that know the model. http_status: the HTTP
    status with which the model's own code refused to load, or None if the load failed for another reason.
    """

    def __init__(
        self, error: ServingError, report: LoadReport, reason: str = "", http_status: int | None = None
    ) -> None:
        super().__init__(error.code, error.message)
        self.http_status = http_status
        self.report = report
        self.reason = reason or error.message

    @property
    def worth_trying_again(self) -> bool:
        """Return whether the same load may succeed the next time. A load whose golden requests failed would fail again."""
        return not self.report.steps or self.report.steps[-1].step is not Step.GOLDEN


class LoadProgress:
    """The progress of a load of these versions. Used on the event loop's thread, except for `advance`."""

    def __init__(self, versions: Collection[int], release: int | None) -> None:
        self.versions = frozenset(versions)
        self.report = LoadReport(release)
        self.over = False  # true once the models that the load replaced are freed
        self._release = release
        self._lock = threading.Lock()
        self._done = self._items = 0
        self._began = 0.0
        self._left: Callable[[], int] | None = None

    def begin(self, step: Step, items: int = 0) -> StepReport:
        """End the previous step and begin this one. items: how many items the step has; `expect` may add more."""
        self.end()
        self._done, self._items, self._began = 0, items, time.monotonic()
        report = StepReport(step)
        self.report.steps.append(report)
        return report

    def expect(self, more: int) -> None:
        """Add items to this step."""
        with self._lock:
            self._items += more

    def advance(self) -> None:
        """Count one item as done. Any thread may call this."""
        with self._lock:
            self._done += 1

    def end(self, *, failed: bool = False) -> None:
        """End the current step."""
        if self._began:
            step = self.report.steps[-1]
            step.ms, step.failed = (time.monotonic() - self._began) * 1000, failed
            self._began = 0.0

    def drain(self, left: Callable[[], int]) -> None:
        """Begin the last step. left: returns how many requests the replaced models still have under way."""
        count = left()
        self.begin(Step.DRAIN, count).under_way = count
        self.end()
        self._left = left

    def report_loading(self) -> Loading | None:
        """Return the progress of the load, or None before its first step."""
        if not self.report.steps:
            return None
        done = self._done if self._left is None else max(0, self._items - self._left())
        return Loading(self._release, self.report.steps[-1].step.value, done, self._items)

"""Counts of an arm of a rollout: since the rollout began, and in the window that guardrails evaluate.

A request only adds to cumulative counts. `tick` stores a reading of them at intervals, and a window is the difference of two
readings.
"""

from collections import Counter, deque
from time import monotonic_ns
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from repository.core.histogram import Counts, Histogram, merge, subtract

READINGS = 60  # the most readings in a window, so the length of a window is exact to a 60th
LONGEST_WAIT_S = 15
MOST_SECONDS = 600
# Failures less than this apart count as one, because they may have one cause: a batch, a crash, a short lack of memory.
MOMENT_NS = 250_000_000
GIVEN_UP_NS = 1_000_000_000  # a request that its client cancels after waiting this long counts as a failure


class Window(NamedTuple):
    """Counts of an arm in its last seconds. latency: the latencies of the requests that did not fail. sum_ns: their sum.
    given_up: how long cancelled requests had waited. refused: how many requests were answered with an error for a mistake of
    the client. begun: how many requests came.
    moments: how many requests failed, or were cancelled after a long wait; those less than MOMENT_NS apart count as one."""

    requests: int
    errors: int
    latency: Counts
    sum_ns: int
    given_up: Counts
    refused: int
    begun: int
    moments: int

    def since(self, earlier: "Window") -> "Window":
        """Return the difference to an earlier cumulative reading."""
        return Window(
            self.requests - earlier.requests,
            self.errors - earlier.errors,
            subtract(self.latency, earlier.latency),
            self.sum_ns - earlier.sum_ns,
            subtract(self.given_up, earlier.given_up),
            self.refused - earlier.refused,
            self.begun - earlier.begun,
            self.moments - earlier.moments,
        )


def rounded_s(window_s: float, most: float) -> float:
    """Return the length of a growing window, rounded up, so that the reported length does not change every second."""
    rounded = 10.0
    while rounded < window_s:
        rounded *= 2
    return min(rounded, most)


def lasted(window: Window) -> Counts:
    """Return the latencies. They include how long the cancelled requests had waited."""
    return merge([window.latency, window.given_up])


class Compared(NamedTuple):
    """How many mirrors ended, and in how many of them the candidate's answer differed or failed."""

    compared: int
    disagreed: int

    def since(self, earlier: "Compared") -> "Compared":
        """Return the difference to an earlier cumulative reading."""
        return Compared(self.compared - earlier.compared, self.disagreed - earlier.disagreed)


class Reading(Protocol):
    """Cumulative counts. The difference of two readings is the counts between them."""

    def since(self, earlier: Self) -> Self: ...


T = TypeVar("T", bound=Reading)


class Windowed(Generic[T]):
    """Counts in a window, computed from cumulative readings.

    seconds: the counts of each second of the window, the oldest first.
    """

    __slots__ = ("_before", "_readings", "_second", "_step_s", "_window_s", "seconds")

    def set_window(self, window_s: float) -> None:
        """Begin a window that grows from zero to this length."""
        self._window_s = max(1, int(window_s))
        self._step_s = max(1, self._window_s // READINGS)
        self._second = 0
        self._before: T = self._reading()
        self._readings: deque[T] = deque([self._before], maxlen=max(1, self._window_s // self._step_s))
        self.seconds: deque[T] = deque(maxlen=min(MOST_SECONDS, self._window_s))

    def tick(self) -> None:
        """Store the counts of the last second and, at intervals, a reading. Called once a second."""
        now = self._reading()
        self._second += 1
        if self._second % self._step_s == 0:
            self._readings.append(now)
        self.seconds.append(now.since(self._before))
        self._before = now

    def window(self) -> T:
        """Return the counts since the oldest reading."""
        return self._reading().since(self._readings[0])

    @property
    def window_s(self) -> int:
        """The present length of the window in seconds, exact to a 60th of it."""
        return min(self._second, self._window_s)

    def _reading(self) -> T:
        raise NotImplementedError


class ArmFigures(Windowed[Window]):
    """Counts of one arm since its rollout began on this server.

    begun: requests that the arm got. requests: requests that it answered or that failed. errors: requests that failed without a
    mistake of the client. withdrawn: requests that were cancelled, or refused as the client's mistake; `requests` does not
    include them. latency: the time from the decoded request to the answer, for the requests that did not fail.
    given_up: how long cancelled requests had waited. moments: see Window.
    """

    __slots__ = (
        "_begun_before",
        "_failed_ns",
        "begun",
        "errors",
        "given_up",
        "latency",
        "moments",
        "refused",
        "requests",
        "withdrawn",
    )

    def __init__(self, window_s: float) -> None:
        self.begun = self.requests = self.errors = self.withdrawn = self.refused = self.moments = 0
        self._failed_ns = -MOMENT_NS
        self.latency = Histogram()
        self.given_up = Histogram()
        self._begun_before: deque[int] = deque(maxlen=LONGEST_WAIT_S + 1)  # the values of `begun`, one for each second
        self.set_window(window_s)

    # -- with each request -----------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Count a request that the arm gets."""
        self.begun += 1

    def count(self, took_ns: int, failed: bool, at_ns: int = 0) -> None:
        """Count a request that was answered, or failed, after `took_ns`. at_ns: when it ended, in monotonic ns; 0 for now."""
        self.requests += 1
        if failed:
            self.errors += 1
            self._fail(at_ns)
        else:
            self.latency.add(took_ns)

    def refuse(self) -> None:
        """Count a request that was refused as the client's mistake."""
        self.withdrawn += 1
        self.refused += 1

    def give_up(self, waited_ns: int, at_ns: int = 0) -> None:
        """Count a request that its client cancelled."""
        self.withdrawn += 1
        self.given_up.add(waited_ns)
        if waited_ns >= GIVEN_UP_NS:
            self._fail(at_ns)

    def _fail(self, at_ns: int) -> None:
        now = at_ns or monotonic_ns()
        if now - self._failed_ns >= MOMENT_NS:
            self._failed_ns = now
            self.moments += 1

    # -- once a second ---------------------------------------------------------------------------------------------
    def tick(self) -> None:
        self._begun_before.append(self.begun)
        super().tick()

    def waiting(self, seconds: int) -> int:
        """Return the least number of requests that have waited this long for their answer (1 to LONGEST_WAIT_S seconds)."""
        if len(self._begun_before) <= seconds:
            return 0
        return max(0, self._begun_before[-1 - seconds] - self.requests - self.withdrawn)

    def _reading(self) -> Window:
        latency, given_up = dict(self.latency.counts), dict(self.given_up.counts)
        took_ns, moments = self.latency.sum_ns, self.moments
        return Window(self.requests, self.errors, latency, took_ns, given_up, self.refused, self.begun, moments)


class ShadowFigures(Windowed[Compared]):
    """Results of comparing both arms' answers to the same requests, since the rollout began on this server.

    compared: pairs of answers that were compared. disagreed: pairs that are beyond the tolerance or mismatched. mismatched:
    pairs whose outputs differ in names, shapes or datatypes.
    top1_compared: rows with classes. top1_agreed: rows whose first class is the same in both answers.
    max_absolute, max_relative: the greatest differences of any element. sum_absolute: the sum of the pairs' mean differences.
    failed: mirrors that the candidate did not answer. dropped: how many mirrors were dropped, by reason.
    trouble: the last error of the candidate, with its time in unix seconds.
    stable_latency, candidate_latency: the latencies of both arms for the same requests.
    """

    __slots__ = (
        "candidate_latency",
        "compared",
        "disagreed",
        "dropped",
        "failed",
        "max_absolute",
        "max_relative",
        "mismatched",
        "stable_latency",
        "sum_absolute",
        "top1_agreed",
        "top1_compared",
        "trouble",
    )

    def __init__(self, window_s: float) -> None:
        self.compared = self.disagreed = self.mismatched = self.failed = 0
        self.top1_compared = self.top1_agreed = 0
        self.max_absolute = self.sum_absolute = self.max_relative = 0.0
        self.dropped: Counter[str] = Counter()
        self.trouble: tuple[str, float] | None = None
        self.stable_latency = Histogram()
        self.candidate_latency = Histogram()
        self.set_window(window_s)

    def _reading(self) -> Compared:
        return Compared(self.compared + self.failed, self.disagreed + self.failed)

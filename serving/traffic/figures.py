"""What an arm of a rollout has done: in all, and in the time that guardrails look at.

Counting adds to cumulative values only; once a second `tick` keeps a reading of them, and a window is the difference of two
readings. Nothing here is cleaned up request by request.
"""

from collections import Counter, deque
from typing import Generic, NamedTuple, TypeVar

from repository.core.histogram import Counts, Histogram, merge, subtract

READINGS = 60  # of a window: it is right to a 60th of its length
LONGEST_WAIT_S = 15
MOST_SECONDS = 600


class Window(NamedTuple):
    """What an arm did in the last so many seconds. latency: of the requests that did not fail, which took `sum_ns` together.
    given_up: how long those had waited that their clients cancelled. refused: those that it took for the client's mistake.
    begun: those that came."""

    requests: int
    errors: int
    latency: Counts
    sum_ns: int
    given_up: Counts
    refused: int
    begun: int


def _between(later: Window, earlier: Window) -> Window:
    """Return what was counted between two cumulative readings."""
    return Window(
        later.requests - earlier.requests,
        later.errors - earlier.errors,
        subtract(later.latency, earlier.latency),
        later.sum_ns - earlier.sum_ns,
        subtract(later.given_up, earlier.given_up),
        later.refused - earlier.refused,
        later.begun - earlier.begun,
    )


def rounded_s(window_s: float, most: float) -> float:
    """Return how long a window is, rounded up while it grows: what changes every second is news to all who listen."""
    rounded = 10.0
    while rounded < window_s:
        rounded *= 2
    return min(rounded, most)


def lasted(window: Window) -> Counts:
    """Return how long requests took at least, those that clients gave up too."""
    return merge([window.latency, window.given_up])


class Compared(NamedTuple):
    """How many mirrors came to an end in the last so many seconds, and how many of them differed or failed."""

    compared: int
    disagreed: int


def _found_between(later: Compared, earlier: Compared) -> Compared:
    return Compared(later.compared - earlier.compared, later.disagreed - earlier.disagreed)


def _seconds(window_s: float) -> int:
    """Return how many seconds of a window are kept one by one."""
    return min(MOST_SECONDS, max(1, int(window_s)))


T = TypeVar("T", Window, Compared)


class Readings(Generic[T]):
    """The cumulative values of the seconds of a window, a few of them. now: as they are at its beginning."""

    __slots__ = ("_readings", "_second", "_step_s", "_window_s")

    def __init__(self, window_s: float, now: T) -> None:
        self._window_s = max(1, int(window_s))
        self._step_s = max(1, self._window_s // READINGS)
        self._second = 0
        self._readings: deque[T] = deque([now], maxlen=max(1, self._window_s // self._step_s))

    def tick(self, now: T) -> None:
        """A second has passed."""
        self._second += 1
        if self._second % self._step_s == 0:
            self._readings.append(now)

    @property
    def oldest(self) -> T:
        return self._readings[0]

    @property
    def seconds(self) -> int:
        """How many seconds ago that was, to a 60th of the window."""
        return min(self._second, self._window_s)


class ArmFigures:
    """Counts of one arm since its rollout began on this server.

    begun: requests that it was given. requests: those that it answered or failed; errors: of them, those that failed by no
    fault of the client. withdrawn: those that count for neither, being cancelled, or refused as the client's mistake.
    latency: from the decoded request to the answer, of the requests that did not fail. given_up: how long those had waited
    that their clients cancelled, which are withdrawn too: their answers would have taken longer still.
    seconds: what it did in each second of the window, the oldest first.
    """

    __slots__ = (
        "_before",
        "_begun_before",
        "_readings",
        "begun",
        "errors",
        "given_up",
        "latency",
        "refused",
        "requests",
        "seconds",
        "withdrawn",
    )

    def __init__(self, window_s: float) -> None:
        self.begun = self.requests = self.errors = self.withdrawn = self.refused = 0
        self.latency = Histogram()
        self.given_up = Histogram()
        self._begun_before: deque[int] = deque(maxlen=LONGEST_WAIT_S + 1)  # `begun`, as of now and each second before
        self.set_window(window_s)

    def set_window(self, window_s: float) -> None:
        """Look at so many seconds from here on; the window is short until it has filled."""
        self._before = self._reading()
        self._readings = Readings(window_s, self._before)
        self.seconds: deque[Window] = deque(maxlen=_seconds(window_s))

    # -- counted with each request ---------------------------------------------------------------------------------
    def begin(self) -> None:
        """The arm is given a request."""
        self.begun += 1

    def count(self, took_ns: int, failed: bool) -> None:
        """It has answered one after so many nanoseconds, or failed."""
        self.requests += 1
        if failed:
            self.errors += 1
        else:
            self.latency.add(took_ns)

    def refuse(self) -> None:
        """It has taken one for the client's mistake."""
        self.withdrawn += 1
        self.refused += 1

    def give_up(self, waited_ns: int) -> None:
        """A client has cancelled one."""
        self.withdrawn += 1
        self.given_up.add(waited_ns)

    # -- read once a second ----------------------------------------------------------------------------------------
    def tick(self) -> None:
        """A second has passed."""
        self._begun_before.append(self.begun)
        now = self._reading()
        self._readings.tick(now)
        self.seconds.append(_between(now, self._before))
        self._before = now

    def window(self) -> Window:
        """Return what was counted since the oldest reading."""
        return _between(self._reading(), self._readings.oldest)

    @property
    def window_s(self) -> int:
        """For how many seconds the window goes back by now."""
        return self._readings.seconds

    def waiting(self, seconds: int) -> int:
        """Return how many requests, at least, have been without an answer for so many seconds (1 to LONGEST_WAIT_S)."""
        if len(self._begun_before) <= seconds:
            return 0
        return max(0, self._begun_before[-1 - seconds] - self.requests - self.withdrawn)

    def _reading(self) -> Window:
        latency, given_up = dict(self.latency.counts), dict(self.given_up.counts)
        return Window(self.requests, self.errors, latency, self.latency.sum_ns, given_up, self.refused, self.begun)


class ShadowFigures:
    """What comparing both arms' answers to the same requests has found since the rollout began on this server.

    compared: pairs of answers. disagreed: of them, those beyond the tolerance, the mismatched ones among them.
    mismatched: those whose outputs have other names, shapes or datatypes.
    top1_compared, top1_agreed: of outputs with classes, how often the first class is the same.
    max_absolute, max_relative: the greatest differences of any element; sum_absolute: of each pair's mean difference.
    failed: mirrors that the candidate did not answer. dropped: mirrors that were not sent, by reason.
    trouble: what the candidate said last in place of an answer, and when (unix seconds).
    stable_latency, candidate_latency: of the same requests. seconds: what each second of the window found, the oldest first.
    """

    __slots__ = (
        "_before",
        "_readings",
        "candidate_latency",
        "compared",
        "disagreed",
        "dropped",
        "failed",
        "max_absolute",
        "max_relative",
        "mismatched",
        "seconds",
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

    def set_window(self, window_s: float) -> None:
        """Look at so many seconds from here on, as ArmFigures does."""
        self._before = self._reading()
        self._readings = Readings(window_s, self._before)
        self.seconds: deque[Compared] = deque(maxlen=_seconds(window_s))

    def tick(self) -> None:
        """A second has passed."""
        now = self._reading()
        self._readings.tick(now)
        self.seconds.append(_found_between(now, self._before))
        self._before = now

    def window(self) -> Compared:
        """Return what was counted since the oldest reading."""
        return _found_between(self._reading(), self._readings.oldest)

    @property
    def window_s(self) -> int:
        """For how many seconds the window goes back by now."""
        return self._readings.seconds

    def _reading(self) -> Compared:
        return Compared(self.compared + self.failed, self.disagreed + self.failed)

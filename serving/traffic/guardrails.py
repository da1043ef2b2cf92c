"""Guardrails: tests of whether a candidate is worse than the stable version by more than a limit, beyond chance.

Once a second, each guardrail compares both arms over the same time: the whole window, and its latest part, which shows a new
fault sooner. A guardrail is breached if the p-value of "the candidate is within the limit" is below the policy's alpha
(significance.py). It holds if the p-value is not below alpha and both arms have enough samples. Failures at several separate
moments are evidence even if there are fewer samples.
A candidate may not answer at all. So requests that wait too long count as errors and as slow. Clients that send one request
after another leave only a few waiting requests. So the time without any answer counts, too. The latency of a cancelled
request is the time that it waited. A request that is refused as the client's mistake counts as failed. All this is counted for
both arms alike, because some clients cancel and make mistakes in any case.
"""

import logging
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple, Protocol

from repository.config.traffic import Guardrail, TrafficPolicy
from repository.core.histogram import BOUNDS_US, Counts, merge, quantiles_ms
from repository.core.quantities import duration, latency, number, share
from serving.traffic.figures import (
    LONGEST_WAIT_S,
    ArmFigures,
    Compared,
    ShadowFigures,
    Window,
    lasted,
    rounded_s,
)
from serving.traffic.prometheus_values import MIN_READINGS
from serving.traffic.significance import (
    LOOKS,
    Counted,
    clustered,
    mean_above_zero,
    of_moments,
    p_value,
    rate_exceeds,
    share_above,
    share_exceeds,
)
from serving.traffic.stable_memory import Known

log = logging.getLogger(__name__)

UNANSWERED_S = 10  # a request that waits this long counts as an error
STILL_S = 5  # a shorter pause is no evidence
GIVEN_UP_S = 1  # a request that its client cancels after this long counts as an error
# The latest parts of the window that are judged have at least LATEST_S seconds. The first has `min_samples` requests to the
# candidate, the second LATEST_SAMPLES.
LATEST_S, LATEST_SAMPLES = 30, 1000
SEVERAL = 5  # how many separate moments of failure are evidence if there are fewer than `min_samples` requests
STEPS_OF_A_DAY = 100  # assumed weight changes in a day, after each of which an arm begins with few requests
BEYOND_QUANTILE = 20  # a quantile is known when this many requests are expected on its rarer side
# How many moments of a second count as independent. Latencies have one: a pause of a second slows all requests in it.
MOMENTS_OF_ERRORS, MOMENTS_OF_LATENCY = 4, 1

_NOTHING: Counted = (0.0, 0.0)

WAITING, HOLDS, BREACHED = "waiting", "holds", "breached"


class Values(Protocol):
    """Readings of a Prometheus metric in the window, for both arms at the same moments.
    counted: whether a reading is a counter's growth and the number of requests meanwhile, not a value and 1.
    remembered: whether the readings of stable are from a time with a smaller weight. problem: why there are no new readings."""

    @property
    def stable(self) -> Sequence[Counted]: ...
    @property
    def candidate(self) -> Sequence[Counted]: ...
    @property
    def counted(self) -> bool: ...
    @property
    def remembered(self) -> bool: ...
    @property
    def problem(self) -> str: ...


class GuardrailState(NamedTuple):
    """The state of a guardrail. limit: the limit for the candidate's value. samples: the samples of stable and candidate."""

    metric: str
    stable: float | None
    candidate: float | None
    limit: float | None
    samples: tuple[int, int]
    p: float | None
    state: str
    detail: str


class _Finding(NamedTuple):
    """The result of a metric's function. p: the p-value, or None while the guardrail waits for samples."""

    detail: str
    stable: float | None = None
    candidate: float | None = None
    limit: float | None = None
    samples: tuple[int, int] = (0, 0)
    p: float | None = None


class _Arm(NamedTuple):
    """An arm's window, second by second. waiting: returns how many requests have waited for a number of seconds.
    window_s: the present length of the window. remembered: when the window was current; "" for the present window."""

    window: Window
    seconds: Sequence[Window]
    waiting: Callable[[int], int]
    window_s: float
    remembered: str = ""


class _Mirrored(NamedTuple):
    """The window of the shadow, with the fields of an _Arm except `waiting`."""

    window: Compared
    seconds: Sequence[Compared]
    window_s: float
    remembered: str = ""


class _Sample(NamedTuple):
    """The arguments of the functions in METRICS."""

    stable: _Arm
    candidate: _Arm
    mirrored: _Mirrored | None
    values: Values | None
    policy: TrafficPolicy


class _Counts(NamedTuple):
    """Counts of an arm. whole: the counts of its whole window. counter: returns the counts of one second. late: counts of the
    requests without an answer, by the second in which they came."""

    whole: Counted
    seconds: Sequence[Any]
    counter: Callable[[Any], Counted]
    late: Sequence[Counted] = ()

    def all(self) -> list[Counted]:
        return [*self.late, *map(self.counter, self.seconds)]


class _Span(NamedTuple):
    """Counts in the whole window, or in its `latest` seconds, and the evidence from them that the candidate is worse."""

    stable: Counted
    candidate: Counted
    evidence: float
    latest: int = 0


class _Question(NamedTuple):
    """The test of a metric. exceeds: returns the evidence that the candidate is worse than allowed, from the counts of the
    candidate and of the stable arm. moments: how many moments of a second count as independent."""

    exceeds: Callable[[Counted, Counted], float]
    moments: float


class Guardrails:
    """The guardrails of one rollout. values: the readings of the Prometheus metrics, by the guardrail's index in the policy."""

    def __init__(
        self,
        policy: TrafficPolicy,
        stable: ArmFigures,
        candidate: ArmFigures,
        shadow: ShadowFigures | None,
        values: Mapping[int, Values],
    ) -> None:
        self._stable, self._candidate, self._shadow = stable, candidate, shadow
        self._failed: set[Guardrail] = set()  # guardrails whose failed evaluation was logged
        self._last: _Arm | None = None  # the last window of the stable arm that had enough requests
        self._last_mirrored: _Mirrored | None = None  # the last window of the shadow that had enough mirrors
        self.configure(policy, values)

    def configure(self, policy: TrafficPolicy, values: Mapping[int, Values]) -> None:
        """Replace the policy, and keep the figures."""
        self.policy, self._values = policy, values

    def last_windows(self) -> tuple[Known | None, Known | None]:
        """Return the last windows of stable and of the shadow that had enough requests, to keep across a restart."""
        stable, mirrored = self._last, self._last_mirrored
        return (
            stable and Known(stable.window, stable.window_s, stable.remembered),
            mirrored and Known(mirrored.window, mirrored.window_s, mirrored.remembered),
        )

    def recall(self, stable: Known | None, mirrored: Known | None) -> None:
        """Restore the last windows of an earlier process."""
        if stable is not None and isinstance(stable.window, Window):
            self._last = _Arm(stable.window, (), lambda seconds: 0, stable.window_s, stable.at)
        if mirrored is not None and isinstance(mirrored.window, Compared):
            self._last_mirrored = _Mirrored(mirrored.window, (), mirrored.window_s, mirrored.at)

    def evaluate(self) -> list[GuardrailState]:
        """Evaluate every guardrail. Called once a second, after the figures' `tick`."""
        stable, candidate, mirrored = self._stable_arm(), _arm(self._candidate), self._mirrored()
        return [
            self._state_of(guardrail, _Sample(stable, candidate, mirrored, self._values.get(place), self.policy))
            for place, guardrail in enumerate(self.policy.guardrails)
        ]

    def _stable_arm(self) -> _Arm:
        """Return the stable arm's window or, if the arm gets too few requests, its last window that had enough."""
        arm = _arm(self._stable)
        if arm.window.requests >= self.policy.min_samples:
            self._last = arm._replace(seconds=(), waiting=lambda seconds: 0, remembered=_now())
            return arm
        may_come = self.policy.weight < 100 and arm.window_s < self.policy.window_s
        return arm if may_come or self._last is None else self._last

    def _mirrored(self) -> _Mirrored | None:
        """Return the shadow's window, or at weight 100, when nothing is mirrored, its last window with enough mirrors."""
        if self._shadow is None:
            return None
        found = _Mirrored(self._shadow.window(), self._shadow.seconds, self._shadow.window_s)
        if found.window.compared >= self.policy.min_samples:
            self._last_mirrored = found._replace(seconds=(), remembered=_now())
        elif self.policy.weight >= 100 and self._last_mirrored is not None:
            return self._last_mirrored
        return found

    def _state_of(self, guardrail: Guardrail, sample: _Sample) -> GuardrailState:
        try:
            found = METRICS[guardrail.metric](guardrail, sample)
            if guardrail.metric in ("errors", "latency") and (found.p is None or found.p >= self.policy.alpha):
                found = _stands_still(guardrail, sample, found)
        except Exception as error:  # the other guardrails must still be evaluated
            found = _Finding(f"it cannot be judged ({type(error).__name__}): the server's log says why")
            if guardrail not in self._failed:
                log.exception("guardrail '%s' cannot be judged", guardrail.metric)
            self._failed.add(guardrail)
        state = WAITING if found.p is None else BREACHED if found.p < self.policy.alpha else HOLDS
        return GuardrailState(
            guardrail.metric, found.stable, found.candidate, found.limit, found.samples, found.p, state, found.detail
        )


def _now() -> str:
    return time.strftime("%H:%M:%S UTC", time.gmtime())


def _arm(figures: ArmFigures) -> _Arm:
    return _Arm(figures.window(), figures.seconds, figures.waiting, figures.window_s)


def _errors(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """Compare the candidate's share of failed requests with stable's share plus a margin."""
    stable, candidate = (_counts(arm, _failed, _late(arm, UNANSWERED_S)) for arm in (sample.stable, sample.candidate))
    asked = _Question(lambda mine, other: share_exceeds(mine, other, guardrail.margin), MOMENTS_OF_ERRORS)
    few = _too_few(sample, sample.policy.min_samples, stable, candidate)
    span = _judge_few(sample, guardrail.margin) if few else None
    if few and span is None:
        return few
    span = span or _judge(sample.policy, stable, candidate, asked, sample.policy.min_samples)
    before, failed = (count / total for count, total in (span.stable, span.candidate))
    limit = before + guardrail.margin
    detail = (
        f"{share(failed)} of {span.candidate[1]:.0f} requests failed {_when(sample, sample.candidate.window_s, span)}"
    )
    if (refused := sample.candidate.window.refused) and not few:
        detail += f" ({refused} refused as the client's mistake)"
    detail += (
        f"; the limit is {share(limit)}, stable had {share(before)} of {span.stable[1]:.0f}{_remembered(sample.stable)}"
    )
    return _Finding(detail, before, failed, limit, _samples(span), p_value(span.evidence))


def _judge_few(sample: _Sample, margin: float) -> _Span | None:
    """Return the whole window as a span if failures show that a candidate with few requests is worse than allowed, else None.
    Each moment of failure counts once. Refused requests do not count, because one client may cause a few."""
    stable, candidate = (
        _counts(arm, _failed_itself, _late(arm, UNANSWERED_S)) for arm in (sample.stable, sample.candidate)
    )
    (failed, total), before = candidate.whole, stable.whole
    moments = sample.candidate.window.moments + len(candidate.late)
    if moments < SEVERAL or not before[1]:
        return None
    evidence = share_exceeds((moments, moments + total - failed), before, margin) + _seldom(sample.policy, total)
    return _Span(before, candidate.whole, evidence) if p_value(evidence) < sample.policy.alpha else None


def _seldom(policy: TrafficPolicy, total: float) -> float:
    """Return an addition to the evidence of an arm with few requests, because it is tested only after each new request."""
    return (
        math.log(max(1.0, LOOKS / (STEPS_OF_A_DAY * max(1, policy.min_samples)))) if total < policy.min_samples else 0.0
    )


def _failed(window: Window) -> Counted:
    """Return how many requests failed, were refused or were cancelled after a long wait, and the number of requests."""
    failed, total = _failed_itself(window)
    return failed + window.refused, total + window.refused


def _failed_itself(window: Window) -> Counted:
    """Return the counts of `_failed` without the refused requests."""
    given_up = _beyond(window.given_up, _GIVEN_UP)
    return window.errors + given_up, window.requests + given_up


def _bucket_beyond(limit_ms: float) -> int:
    """Return the first bucket whose latencies are all beyond the limit."""
    return bisect_left(BOUNDS_US, limit_ms * 1000) + 1


_GIVEN_UP = _bucket_beyond(GIVEN_UP_S * 1000)


def _beyond(lasted: Counts, first: int) -> int:
    return sum([count for bucket, count in lasted.items() if bucket >= first]) if lasted else 0


def _latency(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """Compare a quantile of the latency with a multiple of the stable version's quantile.

    Test the share of requests that are slower than that limit. It is too large if it exceeds both 1 - quantile and stable's
    share of such requests.
    """
    q = guardrail.quantile
    before = quantiles_ms(lasted(sample.stable.window), [q])[0]
    limit = (before or 0.0) * guardrail.ratio
    first = _bucket_beyond(limit)

    def slow(window: Window) -> Counted:
        of = window.requests - window.errors + sum(window.given_up.values())
        return _beyond(window.latency, first) + _beyond(window.given_up, first), of

    def exceeds(mine: Counted, other: Counted) -> float:
        return share_exceeds(mine, (max(other[0], (1.0 - q) * other[1]), other[1]), 0.0)

    waited_s = min(LONGEST_WAIT_S, math.floor(limit / 1000) + 1)
    late = _late(sample.candidate, waited_s) if waited_s * 1000 > limit else []
    stable, candidate = _counts(sample.stable, slow), _counts(sample.candidate, slow, late)
    enough = _known_by(q, sample.policy)
    if few := _too_few(sample, enough, stable, candidate):
        return few
    span = _judge(sample.policy, stable, candidate, _Question(exceeds, MOMENTS_OF_LATENCY), enough)
    found = quantiles_ms(_lasted(sample.candidate, span), [q])[0]
    of, when = f"{span.candidate[1]:.0f}", _when(sample, sample.candidate.window_s, span)
    unanswered = f"{_sum(late)[0]:.0f} of {of} requests had no answer after {waited_s} s"
    detail = (
        f"{unanswered} {when}" if found is None else f"the p{100 * q:g} of {of} requests was {latency(found)} {when}"
    )
    if late and found is not None:
        detail += f", {unanswered}"
    if given_up := _beyond(sample.candidate.window.given_up, first):
        detail += f", and clients gave up {given_up} slower ones"
    detail += f"; the limit is {latency(limit)}, stable had {latency(before or 0.0)} of {span.stable[1]:.0f}"
    detail += _remembered(sample.stable)
    evidence = span.evidence + _seldom(sample.policy, candidate.whole[1]) if span.evidence > 0.0 else 0.0
    return _Finding(detail, before, found, limit, _samples(span), p_value(evidence))


def _disagreement(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """Compare the share of mirrored requests that the candidate fails, or answers beyond the tolerance, with the limit."""
    found = sample.mirrored
    if found is None:
        return _Finding("no answers are compared: give the policy a shadow")
    whole = _differed(found.window)
    samples = int(whole[1]), int(whole[1])
    if whole[1] < max(1, sample.policy.min_samples):
        detail = f"{samples[0]} of {sample.policy.min_samples} mirrored requests in {_round(sample, found.window_s)}"
        return _Finding(detail, samples=samples)
    mirrored = _Counts(whole, found.seconds, _differed)
    known = _Counts(whole, (), _differed)  # used in place of the stable arm's counts, because the limit is fixed
    asked = _Question(lambda mine, _: share_above(mine, guardrail.limit), MOMENTS_OF_ERRORS)
    span = _judge(sample.policy, known, mirrored, asked, sample.policy.min_samples)
    differed = span.candidate[0] / span.candidate[1]
    detail = f"{share(differed)} of {span.candidate[1]:.0f} mirrored requests were answered differently or failed"
    detail += f" {_when(sample, found.window_s, span)}{_remembered(found)}; the limit is {share(guardrail.limit)}"
    return _Finding(detail, None, differed, guardrail.limit, samples, p_value(span.evidence))


def _differed(found: Compared) -> Counted:
    return found.disagreed, found.compared


def _prometheus(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """Compare a metric's readings with a multiple of the stable version's readings."""
    values = sample.values
    if values is None:
        return _Finding("the metric has not been read yet")
    readings = len(values.candidate)
    samples = len(values.stable), readings
    if values.problem or readings < MIN_READINGS:
        return _Finding(values.problem or f"{readings} of {MIN_READINGS} readings", samples=samples)
    (count, of), (count_before, of_before) = _sum(values.candidate), _sum(values.stable)
    if not of or not of_before:
        return _Finding(f"no requests to {'stable' if of else 'the candidate'}", samples=samples)
    found, before = count / of, count_before / of_before
    limit = before + abs(before) * (guardrail.ratio - 1.0)
    if values.counted:
        evidence = rate_exceeds(values.candidate, values.stable, guardrail.ratio)
    elif values.remembered:
        evidence = mean_above_zero([mine - limit for mine, _ in values.candidate])
    else:
        ratio = limit / before if before else 1.0
        both = zip(values.candidate, values.stable, strict=True)
        evidence = mean_above_zero([mine - ratio * other for (mine, _), (other, _) in both])
    what = " for each request" if values.counted else ""
    detail = f"{guardrail.name or 'the query'} was {number(found)}{what} on average of {readings} readings"
    detail += f"; the limit is {number(limit)}, stable had {number(before)}"
    detail += " at a smaller weight" if values.remembered else ""
    return _Finding(detail, before, found, limit, samples, p_value(evidence))


def _stands_still(guardrail: Guardrail, sample: _Sample, found: _Finding) -> _Finding:
    """Return the guardrail's finding `found`, or, if the candidate has stopped answering and that is a breach, a finding that
    says so.

    The candidate has stopped if it ended no request in seconds in which requests waited for it. Seconds in which the stable arm
    was held up, too, do not count. Two probabilities are estimated from earlier seconds: of that many seconds without an ended
    request, and of that many requests that take this long. The larger one gives the p-value.
    """
    least_s = UNANSWERED_S if guardrail.metric == "errors" else max(STILL_S, math.ceil((found.limit or 0.0) / 1000) + 1)
    stable, candidate, seconds = sample.stable, sample.candidate, sample.candidate.seconds
    silent_s = next((place for place, one in enumerate(reversed(seconds)) if _count_ended(one)), len(seconds))
    still_s = sum(candidate.waiting(one) > 0 for one in range(1, min(silent_s, LONGEST_WAIT_S) + 1))
    beside = [_count_ended(one) for one in islice(reversed(stable.seconds), still_s)]
    # The number of seconds in which both arms were held up.
    held_up_s = beside.count(0) if still_s >= least_s and stable.waiting(least_s) else 0
    if still_s - held_up_s < least_s or stable.window.requests < sample.policy.min_samples:
        return found
    waiting = candidate.waiting(least_s)
    earlier = (one for arm in (seconds, stable.seconds) for one in islice(arm, max(0, len(arm) - still_s - 1)))
    before = [_count_ended(one) for one in earlier if one.begun or _count_ended(one)]
    rare = (1 + before.count(0)) / (1 + len(before))
    took = merge([lasted(stable.window), lasted(candidate.window)])
    long = (1 + _beyond(took, _bucket_beyond(least_s * 1000))) / (1 + sum(took.values()))
    p = p_value(min(-(still_s - held_up_s) * math.log(rare), -waiting * math.log(long)))
    if p >= sample.policy.alpha:
        return found
    detail = f"nothing was answered in the last {duration(still_s)} while {waiting} requests waited"
    detail += f"; stable answered {sum(beside)} meanwhile" if any(beside) else ""
    return found._replace(detail=detail, p=p)


def _count_ended(second: Window) -> int:
    return second.requests + second.refused + sum(second.given_up.values())


# -- counts and spans ----------------------------------------------------------------------------------------------------
def _counts(arm: _Arm, count: Callable[[Window], Counted], late: Sequence[Counted] = ()) -> _Counts:
    return _Counts(_sum([count(arm.window), *late]), arm.seconds, count, late)


def _late(arm: _Arm, waited_s: int) -> list[Counted]:
    """Return the counts of requests that have waited at least `waited_s`, by the second in which they came."""
    waiting = [arm.waiting(seconds) for seconds in range(waited_s, LONGEST_WAIT_S + 1)]
    came = [older_too - older for older_too, older in pairwise([*waiting, 0])]
    return [(count, count) for count in reversed(came) if count > 0]


def _judge(policy: TrafficPolicy, stable: _Counts, candidate: _Counts, asked: _Question, enough: int) -> _Span:
    """Return the whole window, or its latest part if only that part shows a breach."""
    whole = _Span(stable.whole, candidate.whole, asked.exceeds(candidate.whole, stable.whole))
    seldom = _seldom(policy, candidate.whole[1])
    if p_value(whole.evidence + seldom) < policy.alpha:  # only then is the costly correction needed
        whole = _looked_at(whole, candidate.all(), stable.all(), asked)
    if p_value(whole.evidence) < policy.alpha:
        return whole
    mine, other = deque[Counted](), deque[Counted]()
    others = map(stable.counter, reversed(stable.seconds))
    found, before = _sum(candidate.late), _sum(stable.late if stable.seconds else [stable.whole])
    wanted = [enough, LATEST_SAMPLES]
    for second in map(candidate.counter, reversed(candidate.seconds)):
        beside = next(others, _NOTHING)
        mine.appendleft(second)
        other.appendleft(beside)
        found, before = _sum([found, second]), _sum([before, beside])
        if len(mine) < LATEST_S or before[1] < enough or found[1] < wanted[0]:
            continue
        latest = _Span(before, found, asked.exceeds(found, before), len(mine))
        if p_value(latest.evidence) < policy.alpha:
            latest = _looked_at(latest, [*candidate.late, *mine], [*stable.late, *other], asked)
        if p_value(latest.evidence) < policy.alpha:
            return latest
        wanted = [many for many in wanted if many > found[1]]
        if not wanted:
            break
    return whole


def _looked_at(span: _Span, candidate: list[Counted], stable: list[Counted], asked: _Question) -> _Span:
    """Return a span with less evidence, because requests of one moment succeed or fail together."""
    worth = clustered(span.evidence, candidate, stable), of_moments(span.evidence, candidate, asked.moments)
    return span._replace(evidence=max(worth))


def _sum(counted: Iterable[Counted]) -> Counted:
    bad = of = 0.0
    for one in counted:
        bad, of = bad + one[0], of + one[1]
    return bad, of


def _known_by(quantile: float, policy: TrafficPolicy) -> int:
    """Return how many requests are needed to know a quantile. The median needs the fewest."""
    rarer = min(quantile, 1.0 - quantile)
    return min(policy.min_samples, math.ceil(BEYOND_QUANTILE / rarer)) if rarer > 0.0 else policy.min_samples


def _too_few(sample: _Sample, enough: int, *arms: _Counts) -> _Finding | None:
    """Return a finding if an arm has too few samples, or None if both arms have enough."""
    samples = int(arms[0].whole[1]), int(arms[1].whole[1])
    for name, arm, count in zip(("stable", "the candidate"), (sample.stable, sample.candidate), samples, strict=True):
        if count < max(1, enough):
            detail = f"{count} of {enough} requests to {name} in {_round(sample, arm.window_s)}"
            if arm is sample.stable and sample.policy.weight >= 100:
                detail += ", and at 100 % no more come: its figures can only come from a smaller weight"
            return _Finding(detail, samples=samples)
    return None


def _lasted(arm: _Arm, span: _Span) -> Counts:
    """Return the latencies of a span, including its cancelled requests."""
    if not span.latest:
        return lasted(arm.window)
    return merge(map(lasted, islice(reversed(arm.seconds), span.latest)))


def _samples(span: _Span) -> tuple[int, int]:
    return int(span.stable[1]), int(span.candidate[1])


def _when(sample: _Sample, window_s: float, span: _Span) -> str:
    return f"in the last {duration(span.latest) if span.latest else _round(sample, window_s)}"


def _round(sample: _Sample, window_s: float) -> str:
    return duration(rounded_s(window_s, sample.policy.window_s))


def _remembered(found: _Arm | _Mirrored) -> str:
    return f" (until {found.remembered}: too few since)" if found.remembered else ""


METRICS: dict[str, Callable[[Guardrail, _Sample], _Finding]] = {
    "errors": _errors,
    "latency": _latency,
    "disagreement": _disagreement,
    "prometheus": _prometheus,
}

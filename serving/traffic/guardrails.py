"""Guardrails: whether a candidate is worse than the stable version by more than is allowed, beyond chance.

Each is judged once a second against what the stable version did in the same time. It waits until both arms have enough samples;
then it is breached where the p-value of "the candidate keeps to the limit" is below the policy's alpha. A candidate that does
not answer at all is judged too: requests that wait too long count as errors, and as slow ones. Clients may give up sooner: what
they cancelled took at least as long as they waited. And it may refuse, as a client's mistake, what stable
answers. Both arms are looked at alike, for clients cancel for reasons of their own, and make mistakes.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from repository.config.traffic import Guardrail, TrafficPolicy
from repository.core.histogram import BOUNDS_US, Counts, quantiles_ms
from serving.traffic.figures import LONGEST_WAIT_S, ArmFigures, ShadowFigures, Window, lasted
from serving.traffic.significance import ranks_above, share_above, share_exceeds

UNANSWERED_S = 10  # a request that waits for so long counts as an error
GIVEN_UP_S = 1  # so does one that its client cancelled after so long
SIGN_WEIGHT = (
    10  # of alpha: a sign test knows nothing of how much slower: seven bad seconds of seven, with the usual alpha
)
MIN_READINGS = 20  # of a Prometheus metric, for each arm

WAITING, HOLDS, BREACHED = "waiting", "holds", "breached"


class Values(Protocol):
    """Readings of a Prometheus metric, the latest ones of the window. problem: why there are none."""

    @property
    def stable(self) -> Sequence[float]: ...
    @property
    def candidate(self) -> Sequence[float]: ...
    @property
    def problem(self) -> str: ...


class GuardrailState(NamedTuple):
    """How a guardrail stands. limit: what the candidate's value may not pass. samples: of the stable arm, of the candidate."""

    metric: str
    stable: float | None
    candidate: float | None
    limit: float | None
    samples: tuple[int, int]
    p: float | None
    state: str
    detail: str


class _Finding(NamedTuple):
    """What a metric's function found. p: None while it waits."""

    detail: str
    stable: float | None = None
    candidate: float | None = None
    limit: float | None = None
    samples: tuple[int, int] = (0, 0)
    p: float | None = None


class _Arm(NamedTuple):
    """An arm's window, second by second, with the requests that it leaves without an answer. waiting: how many, for so many
    seconds."""

    window: Window
    seconds: Sequence[Counts]
    waiting: Callable[[int], int]


class _Sample(NamedTuple):
    """What the functions look at. remembered: of when the stable arm's figures are; "" where they are of this moment."""

    stable: _Arm
    candidate: _Arm
    shadow: ShadowFigures | None
    values: Values | None
    policy: TrafficPolicy
    remembered: str


class Guardrails:
    """Those of one rollout. `values`: readings for the guardrails with a Prometheus metric, by their place in the policy."""

    def __init__(
        self,
        policy: TrafficPolicy,
        stable: ArmFigures,
        candidate: ArmFigures,
        shadow: ShadowFigures | None,
        values: Mapping[int, Values],
    ) -> None:
        self._stable, self._candidate, self._shadow = stable, candidate, shadow
        self._last: tuple[Window, str] | None = None  # of the stable arm, while it had enough; since when
        self.configure(policy, values)

    def configure(self, policy: TrafficPolicy, values: Mapping[int, Values]) -> None:
        """Judge by this policy from here on, with the figures that there are."""
        self.policy, self._values = policy, values

    def evaluate(self) -> list[GuardrailState]:
        """Judge every guardrail, once a second, behind the figures' `tick`."""
        window, remembered = self._stable_window()
        stable = _Arm(window, self._stable.seconds, self._stable.waiting if not remembered else lambda seconds: 0)
        candidate = _Arm(self._candidate.window(), self._candidate.seconds, self._candidate.waiting)
        return [
            self._judged(
                guardrail, _Sample(stable, candidate, self._shadow, self._values.get(place), self.policy, remembered)
            )
            for place, guardrail in enumerate(self.policy.guardrails)
        ]

    def _stable_window(self) -> tuple[Window, str]:
        """Return the stable arm's window; at a weight where it gets too few requests the last one that had enough."""
        window = self._stable.window()
        if window.requests >= self.policy.min_samples:
            self._last = window, time.strftime("%H:%M:%S UTC", time.gmtime())
            return window, ""
        return self._last if self._last is not None else (window, "")

    def _judged(self, guardrail: Guardrail, sample: _Sample) -> GuardrailState:
        found = METRICS[guardrail.metric](guardrail, sample)
        state = WAITING if found.p is None else BREACHED if found.p < self.policy.alpha else HOLDS
        detail = found.detail
        if sample.remembered and state is not WAITING and guardrail.metric in ("errors", "latency"):
            detail += f" (the stable version's of {sample.remembered}, since when it had too few requests)"
        return GuardrailState(
            guardrail.metric, found.stable, found.candidate, found.limit, found.samples, found.p, state, detail
        )


def _errors(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """The share of failed requests, against the stable version's and a margin."""
    stable, candidate = _failed(sample.stable), _failed(sample.candidate)
    samples = stable[1], candidate[1]
    if few := _too_few(samples, sample.policy.min_samples):
        return _Finding(few, samples=samples)
    shares = stable[0] / stable[1], candidate[0] / candidate[1]
    p = share_exceeds(candidate, stable, guardrail.margin, sample.policy.alpha)
    limit = shares[0] + guardrail.margin
    told = f"{shares[1]:.2%} of {candidate[1]} requests failed"
    if refused := sample.candidate.window.refused:
        told += f" ({refused} refused as the client's mistake)"
    told += f", {shares[0]:.2%} of {stable[1]} of the stable version's"
    return _Finding(f"{told}; allowed is {limit:.2%}", shares[0], shares[1], limit, samples, p)


def _failed(arm: _Arm) -> tuple[int, int]:
    """Return how many requests of the window it has not answered as asked, and of how many."""
    window = arm.window
    others = window.refused + arm.waiting(UNANSWERED_S) + _beyond(window.given_up, GIVEN_UP_S * 1000)
    return window.errors + others, window.requests + others


def _beyond(latency: Counts, limit_ms: float) -> int:
    """Return how many surely took so long: those in whole buckets beyond the limit."""
    return sum(count for bucket, count in latency.items() if bucket and BOUNDS_US[bucket - 1] >= limit_ms * 1000)


def _latency(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """A quantile of the latency in ms, against so many times the stable version's."""
    q = guardrail.quantile
    before, latency = (lasted(arm.window) for arm in (sample.stable, sample.candidate))
    slow = sum(before.values()), sum(latency.values())
    stable = quantiles_ms(before, [q])[0]
    if stable is None:
        return _Finding(_too_few(slow, sample.policy.min_samples), samples=slow)
    limit = stable * guardrail.ratio
    waited_s = min(LONGEST_WAIT_S, math.ceil(limit / 1000) + 1)
    unanswered = sample.candidate.waiting(waited_s) if waited_s * 1000 > limit else 0
    samples = slow[0], slow[1] + unanswered
    if few := _too_few(samples, sample.policy.min_samples):
        return _Finding(few, samples=samples)
    candidate = quantiles_ms(latency, [q])[0]
    p = share_above(unanswered, samples[1], 1.0 - q)
    if p >= sample.policy.alpha:
        p = share_above(_beyond(latency, limit) + unanswered, samples[1], 1.0 - q)
        p = max(p, _persists(sample, limit, 1.0 - q) / SIGN_WEIGHT)
    name = f"p{100 * q:g}"
    if candidate is None:
        told = f"{unanswered} requests had no answer after {waited_s} s"
    else:
        told = f"the {name} is {candidate:.3g} ms"
        if unanswered:
            told += f", and {unanswered} requests had no answer after {waited_s} s"
    if given_up := _beyond(sample.candidate.window.given_up, limit):
        told += f", and clients gave up {given_up} slower ones"
    return _Finding(
        f"{told}, the stable version's {stable:.3g} ms; allowed are {limit:.3g} ms",
        stable,
        candidate,
        limit,
        samples,
        p,
    )


def _persists(sample: _Sample, limit: float, allowed: float) -> float:
    """Return the p-value for: the candidate is slower than stable in most seconds, not in a few bad ones.

    Requests of one bad moment are slow together, so that counting them one by one would accuse whichever arm had more of them
    just then. A second counts where more of the candidate's requests than of stable's took longer than `limit` (ms), and more
    than `allowed`; a sign test is told so many seconds that counted, of those in which the arms differed.
    """
    worse = differ = 0
    for stable, candidate in zip(reversed(sample.stable.seconds), reversed(sample.candidate.seconds), strict=False):
        if not candidate:
            continue
        shares = [_beyond(each, limit) / (sum(each.values()) or 1) for each in (stable, candidate)]
        worse += shares[1] > max(shares[0], allowed)
        differ += shares[0] != shares[1]
    return share_above(worse, differ, 0.5)


def _disagreement(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """The share of mirrored requests that the candidate answers beyond the tolerance, or fails."""
    if sample.shadow is None:
        return _Finding("no answers are compared: give the policy a shadow")
    compared, disagreed = sample.shadow.window()
    samples = compared, compared
    if compared < max(1, sample.policy.min_samples):
        return _Finding(f"{compared} of {sample.policy.min_samples} mirrored requests", samples=samples)
    share = disagreed / compared
    told = f"{share:.2%} of {compared} mirrored requests were answered differently or failed; allowed is {guardrail.limit:.2%}"
    return _Finding(told, None, share, guardrail.limit, samples, share_above(disagreed, compared, guardrail.limit))


def _prometheus(guardrail: Guardrail, sample: _Sample) -> _Finding:
    """A metric's readings, against so many times the stable version's."""
    values = sample.values
    if values is None:
        return _Finding("the metric has not been read yet")
    samples = len(values.stable), len(values.candidate)
    if min(samples) < MIN_READINGS:
        return _Finding(values.problem or f"{min(samples)} of {MIN_READINGS} readings of each arm", samples=samples)
    stable, candidate = (sum(each) / len(each) for each in (values.stable, values.candidate))
    p = ranks_above(values.candidate, [value * guardrail.ratio for value in values.stable])
    limit = stable * guardrail.ratio
    told = f"{candidate:.4g} on average, the stable version's {stable:.4g}; allowed is {limit:.4g}"
    return _Finding(told, stable, candidate, limit, samples, p)


def _too_few(samples: tuple[int, int], wanted: int) -> str:
    """Return that an arm has too few samples to be judged; "" where both have enough."""
    for arm, count in zip(("the stable version", "the candidate"), samples, strict=True):
        if count < max(1, wanted):
            return f"{count} of {wanted} requests to {arm}"
    return ""


METRICS: dict[str, Callable[[Guardrail, _Sample], _Finding]] = {
    "errors": _errors,
    "latency": _latency,
    "disagreement": _disagreement,
    "prometheus": _prometheus,
}

"""The statistical evidence that a candidate is worse than allowed, from counts and readings.

Evidence is the logarithm of a likelihood ratio. It compares the fit in which each arm has its own share with the best fit in
which the candidate is within its limit. Without a fault, the probability of this much evidence is about exp(-evidence): a bound
for a known share (Chernoff 1952), and close to Fisher's exact test for two samples. This holds for independent requests, but
requests of one moment fail, or are slow, together. So the evidence is divided by how much more the seconds of an arm vary than
by chance (Rao and Scott 1981). Guardrails are tested every second, so `p_value` is the probability of a false breach in any
test of a day (Bonferroni).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest

LOOKS = 3 * 86_400  # tests in a day: each second, the whole window and two latest parts of it

MOMENT_S = 5  # how long a noisy neighbour or a pause may last

Counted = tuple[float, float]  # a count, and the total that it is part of
_NOTHING = (0.0, 0.0)


def p_value(evidence: float) -> float:
    """Return the probability that, without a fault, any test of a day gives this much evidence."""
    return min(1.0, LOOKS * math.exp(-evidence))


def share_above(counted: Counted, share: float) -> float:
    """Return the evidence that the true share is above this one."""
    count, total = counted
    if count <= total * share:
        return 0.0
    return _likelihood(counted, count / total) - _likelihood(counted, share)


def share_exceeds(candidate: Counted, stable: Counted, margin: float) -> float:
    """Return the evidence that the candidate's share exceeds stable's share by more than the margin."""
    seen = [count / of if of else 0.0 for count, of in (candidate, stable)]
    if seen[0] <= seen[1] + margin:
        return 0.0
    low, high = (
        seen[1],
        min(seen[0] - margin, 1.0 - margin),
    )  # bounds of the stable share that fits both arms best
    for _ in range(50):
        middle = (low + high) / 2
        if _slope(stable, middle) + _slope(candidate, middle + margin) > 0:
            low = middle
        else:
            high = middle
    together = _likelihood(stable, low) + _likelihood(candidate, low + margin)
    return max(0.0, _likelihood(candidate, seen[0]) + _likelihood(stable, seen[1]) - together)


def clustered(evidence: float, candidate: Sequence[Counted], stable: Sequence[Counted]) -> float:
    """Return reduced evidence, because requests of one moment succeed or fail together.

    The evidence is divided by how much more the difference of the arms varies than by chance, from second to second or between
    spans of MOMENT_S. It is reduced further if it is estimated from few seconds (Student's t, not a normal distribution). Both
    sequences end with the same second. An event that affects both arms cancels out.
    """
    if evidence <= 0.0:
        return 0.0
    (count, of), (before, of_before) = _sum(candidate), _sum(stable)
    of, of_before = of or 1.0, of_before or 1.0
    share, share_before = count / of, before / of_before
    chance = share * (1.0 - share) / of + share_before * (1.0 - share_before) / of_before
    apart = [
        (mine[0] - share * mine[1]) / of - (other[0] - share_before * other[1]) / of_before
        for mine, other in zip_longest(reversed(candidate), reversed(stable), fillvalue=_NOTHING)
        if mine[1] or other[1]
    ]
    more = _scatter(apart) / chance if chance > 0.0 else 1.0
    return _students(evidence / max(1.0, more), len(apart))


def of_moments(evidence: float, candidate: Sequence[Counted], moments: float) -> float:
    """Return the evidence, reduced as if all requests of one moment were a single observation (Hoeffding 1963). moments: how
    many moments of a second are independent."""
    of = sum(of for _, of in candidate)
    return evidence * min(1.0, moments * of / sum(of * of for _, of in candidate)) if of else 0.0


def rate_exceeds(candidate: Sequence[Counted], stable: Sequence[Counted], ratio: float) -> float:
    """Return the evidence that the candidate's count for each request is more than `ratio` times the count of stable.

    candidate, stable: second by second, a count (of events, tokens, seconds) and the number of requests. The counts are
    modelled as Poisson-distributed with overdispersion, which is estimated from how they vary (quasi-likelihood).
    """
    (count, of), (before, of_before) = _sum(candidate), _sum(stable)
    both, weights = count + before, ratio * of + of_before
    evidence = share_above((count, both), ratio * of / weights) if weights else 0.0
    found = []
    for arm, (total, requests) in ((candidate, (count, of)), (stable, (before, of_before))):
        if total > 0.0:
            apart = [each[0] - total / requests * each[1] for each in arm]
            size = _scatter(apart) / total
            found.append(_students(evidence / size if size > 0.0 else math.inf, len(apart)))
    return min(found) if evidence > 0.0 else 0.0


def mean_above_zero(values: Sequence[float]) -> float:
    """Return the evidence that values, in the order of time, are above zero on average (Student's t).

    Values that resemble the previous value count less, by an autoregression of order 1.
    """
    mean = sum(values) / (len(values) or 1)
    if mean <= 0.0:
        return 0.0
    apart = [value - mean for value in values]
    spread = _squares(apart)
    if spread <= len(values) * (1e-9 * mean) ** 2:
        return math.inf
    alike = max(0.0, sum(one * other for one, other in pairwise(apart)) / spread)
    worth = len(values) * (1.0 - alike) / (1.0 + alike)
    return _students(worth / 2 * mean * mean * len(values) / spread, worth)


def _students(evidence: float, values: float) -> float:
    """Return the evidence, reduced because the scatter is estimated from only so many values."""
    freedom = values - 1.0
    return values / 2 * math.log1p(2 * evidence / freedom) if freedom > 0.0 else 0.0


def _scatter(seconds: Sequence[float]) -> float:
    """Return the larger of two sums of squares: over seconds, or over spans of MOMENT_S seconds."""
    moments = (sum(seconds[place : place + MOMENT_S]) for place in range(0, len(seconds), MOMENT_S))
    return max(_squares(seconds), _squares(moments))


def _squares(values: Iterable[float]) -> float:
    return sum(value * value for value in values)


def _sum(seconds: Sequence[Counted]) -> Counted:
    return sum(count for count, _ in seconds), sum(of for _, of in seconds)


def _likelihood(counted: Counted, share: float) -> float:
    """Return the log-likelihood of the counts, given this true share."""
    count, of = counted
    found = 0.0
    for part, probability in ((count, share), (of - count, 1.0 - share)):
        if part > 0.0:
            found += part * (math.log(probability) if probability > 0.0 else -math.inf)
    return found


def _slope(counted: Counted, share: float) -> float:
    """Return the derivative of the log-likelihood with respect to the share."""
    count, of = counted
    rises = count / share if count else 0.0
    falls = (of - count) / (1.0 - share) if of > count else 0.0
    return rises - falls

"""How sure it is that a share is greater than allowed, from counts: exact tests of binomial shares, and of ranks.

A p-value is the probability to see what was seen, or more, where nothing is wrong; a guardrail acts where it is small.
Sources: Clopper and Pearson (1934), Berger and Boos (1994), Mann and Whitney (1947); the incomplete beta function by its
continued fraction, DLMF 8.17.22, summed by Lentz's method.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

_TINY = 1e-300
_NORMAL = NormalDist()


def share_above(count: int, of: int, share: float) -> float:
    """Return the p-value of `count` or more of `of` independent events, each of which happens with probability `share`."""
    if count <= 0 or share >= 1.0:
        return 1.0
    if share <= 0.0:
        return 0.0
    return _incomplete_beta(count, of - count + 1, share)


def share_bound(count: int, of: int, alpha: float) -> float:
    """Return what the true share is not above, but for a probability of `alpha`, where `count` of `of` were seen."""
    if count >= of:
        return 1.0
    low, high = count / of, 1.0
    while high - low > 1e-9 + 1e-4 * high:
        middle = (low + high) / 2
        if 1.0 - _incomplete_beta(count + 1, of - count, middle) > alpha:
            low = middle
        else:
            high = middle
    return high


def share_exceeds(candidate: tuple[int, int], stable: tuple[int, int], margin: float, alpha: float) -> float:
    """Return the p-value for: the candidate's share is above the stable one's and the margin. Both are (count, of).

    The stable share is not known either: it is taken as high as it can be but for a hundredth of `alpha`, which is added.
    """
    unsure = alpha / 100
    highest = share_bound(*stable, unsure)
    return min(1.0, share_above(*candidate, min(1.0, highest + margin)) + unsure)


def ranks_above(candidate: Sequence[float], stable: Sequence[float]) -> float:
    """Return the p-value for: values of the first kind tend to be greater than those of the second. 1.0 where one is empty.

    By the normal approximation, with the correction for ties and for continuity: for 20 values of each kind or more.
    """
    n, m = len(candidate), len(stable)
    if not n or not m:
        return 1.0
    values = sorted([(value, 1) for value in candidate] + [(value, 0) for value in stable])
    ranks = ties = 0.0
    place = 0
    while place < n + m:
        end = place
        while end < n + m and values[end][0] == values[place][0]:
            end += 1
        alike = end - place
        ranks += sum(mine for _, mine in values[place:end]) * (place + 1 + end) / 2
        ties += alike**3 - alike
        place = end
    greater = ranks - n * (n + 1) / 2  # how often one of the candidate's is the greater of a pair; a tie counts half
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    if variance <= 0.0:
        return 1.0
    return 1.0 - _NORMAL.cdf((greater - n * m / 2 - 0.5) / math.sqrt(variance))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b): the probability of `a` or more of a+b-1 events of share x."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    # Where x is beyond the mean, the fraction of the other tail converges sooner.
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(a, b, x) / a
    return 1.0 - front * _fraction(b, a, 1.0 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, _inverse(1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d, c = _inverse(1.0 + even * d), _away(1.0 + even / c)
        found *= d * c
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d, c = _inverse(1.0 + odd * d), _away(1.0 + odd / c)
        found *= d * c
        if abs(d * c - 1.0) < 1e-12:
            break
    return found


def _away(value: float) -> float:
    """Return a value that can be divided by."""
    return value if abs(value) > _TINY else _TINY


def _inverse(value: float) -> float:
    return 1.0 / _away(value)

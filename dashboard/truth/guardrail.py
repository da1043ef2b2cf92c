"""A guardrail of rollouts by truth: a candidate whose metric is worse than stable's, by more than the limit and by more than
chance, is taken out.

The two are compared when the candidate has 30 labels, and again whenever it has twice as many as at the last look: at most some
fifteen looks. Each takes intervals of 99.9 %, so a candidate that is not worse than the limit is taken out in less than one
rollout in a hundred. Only requests count that were answered since the rollout began.
"""

import logging

from dashboard.models import Rollout, TruthMetric
from dashboard.releases import rollout_states as states
from dashboard.rollouts.services import rollout_roll_back
from dashboard.shared.exceptions import DashboardError
from dashboard.shared.intervals import LEAST_VALUES, STRICT, difference
from dashboard.truth.selectors import VersionTruth, versions_of

logger = logging.getLogger(__name__)


def rollouts_check() -> int:
    """Take out the candidates that are worse than their guardrail allows, and return their number."""
    rows = TruthMetric.objects.exclude(limit=None).filter(model__rollouts__state__in=states.UNDER_WAY)
    return sum(_check(metric) for metric in rows.select_related("model").distinct())


def _check(metric: TruthMetric) -> bool:
    rollout = Rollout.objects.filter(model=metric.model_id, state__in=states.UNDER_WAY).select_related("model").first()
    if rollout is None or rollout.candidate_version is None or rollout.stable_version is None:
        return False
    found = {one.version: one for one in versions_of(metric, since=rollout.started_at, deviations=STRICT)}
    candidate, stable = found.get(rollout.candidate_version), found.get(rollout.stable_version)
    if candidate is None or stable is None or not _due(metric, rollout, candidate):
        return False
    reason = breach(metric, candidate, stable)
    if reason:
        try:
            rollout_roll_back(rollout=rollout, reason=reason)
        except (
            DashboardError
        ) as error:  # a person ended it first, or it cannot be written now: the next look tries again
            logger.info("rollout %s of %s: %s", rollout.name, metric.model.name, error.message)
            return False
    TruthMetric.objects.filter(pk=metric.pk).update(looked={rollout.name: candidate.scored})
    return bool(reason)


def _due(metric: TruthMetric, rollout: Rollout, candidate: VersionTruth) -> bool:
    return candidate.scored >= max(LEAST_VALUES, 2 * metric.looked.get(rollout.name, 0))


def breach(metric: TruthMetric, candidate: VersionTruth, stable: VersionTruth) -> str:
    """Return why a candidate is taken out, as a clause; "" if it stays."""
    worse = least_worse(metric, candidate, stable)
    if worse is None or metric.limit is None or worse <= metric.limit:
        return ""
    name = metric.get_kind_display().lower()
    return (
        f"by {candidate.labels} labels, the {name} of version {candidate.version} is {candidate.value:.3g}, "
        f"and that of version {stable.version} is {stable.value:.3g}; at most {metric.limit:g} worse is allowed"
    )


def least_worse(metric: TruthMetric, one: VersionTruth, other: VersionTruth) -> float | None:
    """Return the least by which a version is worse than another one, by their intervals; None for too few labels."""
    apart = difference(one.estimate, other.estimate)
    if apart is None:
        return None
    return -apart.high if metric.higher_is_better else apart.low

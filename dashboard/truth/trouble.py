"""What an alert about truth tells: the version that serves is worse than a bound, or than the version before it.

Both by more than chance: from 30 labels on, with intervals of 99.9 %, because `watch` looks again and again. A fall counts from
the limit of the guardrail on, if there is one.
"""

from dashboard.models import TruthMetric
from dashboard.releases.selectors import serving_release
from dashboard.shared.intervals import LEAST_VALUES, STRICT
from dashboard.truth.guardrail import least_worse
from dashboard.truth.selectors import VersionTruth, versions_of


def truths_check() -> int:
    """Note at each metric what an alert tells about it now, and return how many notes changed."""
    done = 0
    for metric in TruthMetric.objects.select_related("model"):
        trouble = trouble_of(metric)
        if trouble != metric.trouble:
            done += TruthMetric.objects.filter(pk=metric.pk, changed_at=metric.changed_at).update(trouble=trouble)
    return done


def trouble_of(metric: TruthMetric) -> str:
    """Return why the version that serves is worse than it should be, as a sentence; "" if it is not."""
    release = serving_release(metric.model)
    if release is None:
        return ""
    found = [one for one in versions_of(metric, deviations=STRICT) if one.scored >= LEAST_VALUES]
    now = next((one for one in found if one.version == release.answers), None)
    if now is None:
        return ""
    before = next((one for one in found if one.version < now.version), None)
    name = metric.get_kind_display().lower()
    words = f"By {now.scored} labels, the {name} of version {now.version}, which serves, is {now.value:.3g}"
    if _beyond(metric, now):
        return f"{words}: worse than the bound of {metric.bound:g}."
    worse = least_worse(metric, now, before) if before is not None else None
    if before is None or worse is None or worse <= (metric.limit or 0):
        return ""
    return f"{words}, and that of version {before.version} was {before.value:.3g}."


def _beyond(metric: TruthMetric, now: VersionTruth) -> bool:
    if metric.bound is None or now.estimate is None:
        return False
    return now.estimate.high < metric.bound if metric.higher_is_better else now.estimate.low > metric.bound

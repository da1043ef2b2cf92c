"""Reads of labels and of the metric of each version, with its spread."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Avg, Count, F, Q
from django.utils import timezone

from dashboard.models import Model, TruthLabel, TruthMetric
from dashboard.shared.choices import TruthKind
from dashboard.shared.intervals import Estimate, mean_of, share_of

DAYS = 30  # that a label waits for its answer, and is kept


@dataclass(frozen=True, slots=True)
class VersionTruth:
    """The metric of one version. labels: joined with answers. unfit: of these, those that cannot be compared. estimate: the
    value with its 95 % interval; None for too few labels."""

    version: int
    labels: int
    unfit: int
    value: float | None
    estimate: Estimate | None


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """The labels of a model. waiting: for a captured answer."""

    total: int
    waiting: int
    newest: datetime | None


def metric_of(model: Model) -> TruthMetric | None:
    """Return the metric of a model, or None."""
    return TruthMetric.objects.filter(model=model).select_related("model").first()


def label_counts(model: Model) -> LabelCounts:
    """Return how many labels a model has."""
    rows = TruthLabel.objects.filter(model=model)
    newest = rows.order_by("-received_at").values_list("received_at", flat=True).first()
    return LabelCounts(rows.count(), rows.filter(version=None).count(), newest)


def versions_of(metric: TruthMetric, since: datetime | None = None, deviations: float = 1.96) -> list[VersionTruth]:
    """Return the metric of each version with labels, the newest first. since: only of requests answered from then on."""
    rows = TruthLabel.objects.filter(model=metric.model_id).exclude(version=None)
    rows = rows.filter(answered_at__gte=since or timezone.now() - timedelta(days=DAYS))
    found = rows.values("version").annotate(
        labels=Count("pk"), scored=Count("score"), mean=Avg("score"), square=Avg(F("score") * F("score"))
    )
    return [
        _version(metric, int(row["version"] or 0), row["labels"], row["scored"], row["mean"], row["square"], deviations)
        for row in found.order_by("-version")
    ]


def _version(
    metric: TruthMetric,
    version: int,
    labels: int,
    scored: int,
    mean: float | None,
    square: float | None,
    deviations: float,
) -> VersionTruth:
    if mean is None or square is None:
        return VersionTruth(version, labels, labels, None, None)
    if metric.kind == TruthKind.ACCURACY:
        estimate = share_of(round(mean * scored), scored, deviations)
    else:
        estimate = mean_of(scored, mean, square, deviations)
    if metric.kind == TruthKind.RMSE:
        mean = math.sqrt(mean)
        estimate = estimate and _rooted(estimate)
    return VersionTruth(version, labels, labels - scored, mean, estimate)


def _rooted(estimate: Estimate) -> Estimate:
    """Return the square root of an estimate: the root grows with its value, so the bounds stay bounds."""
    return Estimate(*(math.sqrt(max(0.0, one)) for one in (estimate.value, estimate.low, estimate.high)))


def matching_needed() -> Iterable[Model]:
    """Return the models that have a metric, and labels that wait for an answer."""
    waiting = Q(truth_labels__version=None) & Q(truth_labels__isnull=False)
    return Model.objects.filter(waiting, truth_metric__isnull=False).distinct()

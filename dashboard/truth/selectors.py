"""Reads of labels and of the metric of each version, with its spread."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Avg, Count, F, Q
from django.utils import timezone

from dashboard.configuration.signatures import served_signature
from dashboard.models import Model, TruthLabel, TruthMetric
from dashboard.playground.labels import output_labels
from dashboard.releases.selectors import current_document
from dashboard.shared.choices import TruthKind
from dashboard.shared.intervals import Estimate, mean_of, share_of

DAYS = 30  # that a label waits for its answer, and is kept
_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class VersionTruth:
    """The metric of one version. labels: joined with answers. unfit: of these, those that cannot be compared, and example: one
    of them. estimate: the value with its 95 % interval; None for too few labels."""

    version: int
    labels: int
    unfit: int
    value: float | None
    estimate: Estimate | None
    example: str = ""

    @property
    def scored(self) -> int:
        return self.labels - self.unfit


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """The labels of a model. waiting: those whose id no captured answer has, and waits: one of these ids. late: those that came
    more than 30 days after the answer; they are not counted in the metric."""

    total: int
    waiting: int
    late: int
    waits: str


def metric_of(model: Model) -> TruthMetric | None:
    """Return the metric of a model, or None."""
    return TruthMetric.objects.filter(model=model).select_related("model").first()


def label_counts(model: Model) -> LabelCounts:
    """Return how many labels a model has."""
    rows = TruthLabel.objects.filter(model=model)
    waiting = rows.filter(version=None)
    late = rows.filter(received_at__gt=F("answered_at") + timedelta(days=DAYS))
    waits = waiting.values_list("request_id", flat=True).first() or ""
    return LabelCounts(rows.count(), waiting.count(), late.count(), waits)


def compared(metric: TruthMetric) -> str:
    """Return, as a sentence, what of an answer is compared with its label."""
    output = f"'{metric.output}'"
    if metric.kind != TruthKind.ACCURACY:
        words = "is the prediction of the expression" if metric.kind == TruthKind.OWN else "is compared with the label"
        most = ", or the index of its highest one," if metric.kind == TruthKind.OWN else ""
        return f"The only element of {output}{most} {words}, as a number."
    if _datatype(metric) == "BYTES":
        return f"The text in {output} is compared with the label, letter by letter."
    names = output_labels(metric.model.name).get(metric.output, [])
    if not names:
        return (
            f"The only element of {output}, or the index of its highest one, is compared with the label as a number. "
            f"Its classes have no names: name them on the page Playground, or by a label file, to send names as labels."
        )
    shown = ", ".join(f"'{name}'" for name in names[:_SHOWN_NAMES])
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    by_index = "a label that is no name, by its index"
    return f"The class of {output} is compared with the label by its name ({shown}{more}); {by_index}."


def _datatype(metric: TruthMetric) -> str:
    """Return V2's name of the output's datatype; "" if the signature does not have it."""
    version = metric.model.versions.order_by("-number").first()
    outputs = served_signature(current_document(metric.model), version)["outputs"]
    return next((row["datatype"] for row in outputs if row["name"] == metric.output), "")


def versions_of(metric: TruthMetric, since: datetime | None = None, deviations: float = 1.96) -> list[VersionTruth]:
    """Return the metric of each version with labels, the newest first. since: only of requests answered from then on."""
    rows = TruthLabel.objects.filter(model=metric.model_id).exclude(version=None)
    rows = rows.filter(answered_at__gte=since or timezone.now() - timedelta(days=DAYS))
    found = rows.values("version").annotate(
        labels=Count("pk"), scored=Count("score"), mean=Avg("score"), square=Avg(F("score") * F("score"))
    )
    versions = [
        _version(metric, int(row["version"] or 0), row["labels"], row["scored"], row["mean"], row["square"], deviations)
        for row in found.order_by("-version")
    ]
    unfit = rows.filter(score=None).order_by("-pk").values_list("value", flat=True)
    return [
        replace(one, example=unfit.filter(version=one.version).first() or "") if one.unfit else one for one in versions
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

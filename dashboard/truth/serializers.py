"""The shapes of labels and metrics as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.models import TruthMetric
from dashboard.shared.choices import TruthKind
from dashboard.truth.services import LONGEST, MOST_AT_ONCE


class MetricRequestSerializer(serializers.Serializer[Any]):
    kind = serializers.ChoiceField(TruthKind.choices)
    output = serializers.CharField(
        default="", allow_blank=True, max_length=200, help_text="The prediction; by default the first output."
    )
    expression = serializers.CharField(
        default="",
        allow_blank=True,
        max_length=200,
        help_text="Of an own metric: arithmetic of label and prediction; the metric is its mean.",
    )
    higher_is_better = serializers.BooleanField(default=True, help_text="Of an own metric.")
    limit = serializers.FloatField(
        default=None, allow_null=True, help_text="A guardrail: by how much a rollout's candidate may be worse."
    )
    bound = serializers.FloatField(
        default=None, allow_null=True, help_text="An alert: what the version that serves must not be worse than."
    )


class MetricSerializer(serializers.ModelSerializer[TruthMetric]):
    class Meta:
        model = TruthMetric
        fields = ["kind", "output", "expression", "higher_is_better", "limit", "bound", "trouble", "changed_at"]


class IntervalSerializer(serializers.Serializer[Any]):
    """shared.intervals.Estimate"""

    low = serializers.FloatField()
    high = serializers.FloatField()


class VersionTruthSerializer(serializers.Serializer[Any]):
    """selectors.VersionTruth"""

    version = serializers.IntegerField()
    labels = serializers.IntegerField(help_text="Joined with an answer.")
    unfit = serializers.IntegerField(help_text="Of these, those that cannot be compared with the answer.")
    example = serializers.CharField(help_text='One of the unfit labels, or "".')
    value = serializers.FloatField(allow_null=True)
    interval = IntervalSerializer(source="estimate", allow_null=True, help_text="95 %; null for too few labels.")


class TruthSerializer(serializers.Serializer[Any]):
    metric = MetricSerializer(allow_null=True)
    labels = serializers.IntegerField()
    waiting = serializers.IntegerField(help_text="Labels whose id no captured answer has so far.")
    late = serializers.IntegerField(
        help_text="Labels that came more than 30 days after the answer; they are not counted."
    )
    compared = serializers.CharField(help_text='What of an answer is compared with its label; "" without a metric.')
    versions = VersionTruthSerializer(many=True)


class LabelSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(max_length=LONGEST, help_text="Of the request.")
    label = serializers.JSONField(help_text="A text, a number, true or false.")  # type: ignore[assignment]  # a field's own name


class LabelsSerializer(serializers.Serializer[Any]):
    labels = serializers.ListField(child=LabelSerializer(), min_length=1, max_length=MOST_AT_ONCE)


class LabelsAddedSerializer(serializers.Serializer[Any]):
    """services.LabelsAdded"""

    labels = serializers.IntegerField(help_text="The number of different requests.")
    replaced = serializers.IntegerField(help_text="Of these, those that had a label already.")
    repeated = serializers.IntegerField(help_text="Rows that a later row of the same request replaced.")

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


class MetricSerializer(serializers.ModelSerializer[TruthMetric]):
    class Meta:
        model = TruthMetric
        fields = ["kind", "output", "expression", "higher_is_better", "limit", "changed_at"]


class IntervalSerializer(serializers.Serializer[Any]):
    """shared.intervals.Estimate"""

    low = serializers.FloatField()
    high = serializers.FloatField()


class VersionTruthSerializer(serializers.Serializer[Any]):
    """selectors.VersionTruth"""

    version = serializers.IntegerField()
    labels = serializers.IntegerField(help_text="Joined with an answer.")
    unfit = serializers.IntegerField(help_text="Of these, those that cannot be compared with the answer.")
    value = serializers.FloatField(allow_null=True)
    interval = IntervalSerializer(source="estimate", allow_null=True, help_text="95 %; null for too few labels.")


class TruthSerializer(serializers.Serializer[Any]):
    metric = MetricSerializer(allow_null=True)
    labels = serializers.IntegerField()
    waiting = serializers.IntegerField(help_text="Labels without a captured answer so far.")
    versions = VersionTruthSerializer(many=True)


class LabelSerializer(serializers.Serializer[Any]):
    id = serializers.CharField(max_length=LONGEST, help_text="Of the request.")
    label = serializers.JSONField(help_text="A text, a number, true or false.")  # type: ignore[assignment]  # a field's own name


class LabelsSerializer(serializers.Serializer[Any]):
    labels = serializers.ListField(child=LabelSerializer(), min_length=1, max_length=MOST_AT_ONCE)


class LabelsAddedSerializer(serializers.Serializer[Any]):
    labels = serializers.IntegerField(help_text="The number of different requests.")

"""The shapes of drift monitors and their windows as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.drift.comparison import ALPHA, LEAST_ROWS, THRESHOLD
from dashboard.drift.services import MOST_DAYS, MOST_WINDOW, WINDOW
from dashboard.models import DriftMonitor, DriftWindow


class DriftMonitorSerializer(serializers.ModelSerializer[DriftMonitor]):
    model = serializers.CharField(source="model.name")
    reference = serializers.UUIDField(source="reference_id", allow_null=True, help_text="The capture; null: deleted.")
    state = serializers.CharField(help_text="waiting, clean, drifted, or rests: its reference was deleted.")

    class Meta:
        model = DriftMonitor
        fields = [
            *("id", "model", "reference", "days", "version", "window", "alpha", "threshold", "state", "windows"),
            *("drifted_since", "note", "checked_at", "job", "created_by_name", "created_at"),
        ]


class DriftRequestSerializer(serializers.Serializer[Any]):
    capture = serializers.CharField(
        default="", allow_blank=True, max_length=64, help_text='The reference; "" for the first days of a version.'
    )
    version = serializers.IntegerField(
        default=0, min_value=0, max_value=2**53, help_text="Only requests that it answered; 0 for any."
    )
    days = serializers.FloatField(default=0.0, min_value=0, max_value=MOST_DAYS, help_text="Of the reference; 0: all.")
    window = serializers.IntegerField(
        default=WINDOW, min_value=LEAST_ROWS, max_value=MOST_WINDOW, help_text="Requests of one window."
    )
    alpha = serializers.FloatField(
        default=ALPHA, min_value=1e-6, max_value=0.2, help_text="The probability of a false alarm over all windows."
    )
    threshold = serializers.FloatField(
        default=THRESHOLD, min_value=0, max_value=10, help_text="The least drift score of a drifted column."
    )


class ColumnDriftSerializer(serializers.Serializer[Any]):
    """models.drift.ColumnDrift"""

    name = serializers.CharField()
    kind = serializers.CharField(help_text="numeric or categorical.")
    test = serializers.CharField()
    statistic = serializers.FloatField()
    p = serializers.FloatField()
    adjusted_p = serializers.FloatField(help_text="Corrected for the number of columns (Benjamini-Yekutieli).")
    score_name = serializers.CharField()
    score = serializers.FloatField(help_text="The drift score.")
    drifted = serializers.BooleanField()


class DistributionSerializer(serializers.Serializer[Any]):
    """models.drift.Distribution"""

    labels = serializers.ListField(child=serializers.CharField())
    reference = serializers.ListField(child=serializers.FloatField())
    current = serializers.ListField(child=serializers.FloatField())


class DriftWindowSerializer(serializers.ModelSerializer[DriftWindow]):
    share = serializers.FloatField(help_text="Of drifted columns, from 0 to 1.")
    columns = ColumnDriftSerializer(many=True, help_text="The worst first.")

    class Meta:
        model = DriftWindow
        fields = [
            *("number", "capture", "first_at", "last_at", "requests", "reference_requests", "level", "compared"),
            *("drifted", "share", "columns"),
        ]


class DriftWindowDetailSerializer(DriftWindowSerializer):
    distributions = DistributionSerializer(
        many=True, help_text="Of the first columns; [] without the right to see what clients send."
    )

    class Meta(DriftWindowSerializer.Meta):
        fields = [*DriftWindowSerializer.Meta.fields, "distributions"]


class DriftFoundSerializer(serializers.Serializer[Any]):
    """selectors.DriftFound"""

    model_name = serializers.CharField()
    monitor = serializers.IntegerField()
    since = serializers.DateTimeField()
    window = serializers.IntegerField()
    columns = serializers.ListField(child=serializers.CharField())
    share = serializers.FloatField()

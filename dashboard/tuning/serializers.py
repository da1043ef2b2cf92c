"""The shapes of tunings as JSON in the REST API. The rules are in services and in tuning.plan."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.measurements.plan import ENCODINGS, INPUTS
from dashboard.measurements.serializers import FigureSerializer, LoadFiguresSerializer
from dashboard.shared.choices import MeasurementState
from dashboard.tuning.changes import difference_of
from dashboard.tuning.plan import GOALS


class TuningRequestSerializer(serializers.Serializer[Any]):
    """models.tuning.TuningPlan: the fields that differ from the defaults."""

    goal = serializers.ChoiceField(list(GOALS), required=False)
    p99_ms = serializers.FloatField(required=False, help_text="The limit of the goals `throughput` and `memory`.")
    per_second = serializers.FloatField(required=False, help_text="The rate of the goals `latency` and `memory`.")
    clients = serializers.IntegerField(required=False, help_text="Of the closed loop of the goal `throughput`.")
    encoding = serializers.ChoiceField(list(ENCODINGS), required=False)
    inputs = serializers.ChoiceField(list(INPUTS), required=False)
    rows = serializers.IntegerField(required=False, help_text="The first dimension of inputs made from the signature.")
    warmup_s = serializers.FloatField(required=False)
    window_s = serializers.FloatField(required=False)
    least_windows = serializers.IntegerField(required=False)
    most_windows = serializers.IntegerField(required=False)
    variation = serializers.FloatField(required=False, help_text="A trial ends at this coefficient of variation.")
    rounds = serializers.IntegerField(required=False, help_text="Of the final comparison.")
    most_instances = serializers.IntegerField(required=False)
    most_batch = serializers.IntegerField(required=False)
    most_threads = serializers.IntegerField(required=False)
    most_trials = serializers.IntegerField(required=False, help_text="Of the search.")
    most_minutes = serializers.FloatField(required=False, help_text="The time for all trials.")


class TrialSerializer(serializers.Serializer[Any]):
    """models.tuning.Trial"""

    setting = serializers.DictField(child=serializers.CharField())
    state = serializers.ChoiceField(["done", "ended", "failed"])
    note = serializers.CharField()
    round = serializers.IntegerField(help_text="0 in the search, 1 or more in the final comparison.")
    figures = LoadFiguresSerializer(allow_null=True)
    fits = serializers.BooleanField(help_text="Whether the trial kept the limits.")
    seconds = serializers.FloatField()


class GainSerializer(serializers.Serializer[Any]):
    """models.tuning.Gain"""

    before = FigureSerializer()
    after = FigureSerializer()
    change = serializers.FloatField(help_text="1.5: the figure of the goal is 2.5 times as high as before.")
    spread = serializers.FloatField(allow_null=True, help_text="Half of the 95 % confidence interval.")
    better = serializers.BooleanField(help_text="Whether the gain is beyond the spread.")


class TuningSerializer(serializers.ModelSerializer[models.Tuning]):
    version = serializers.IntegerField(source="version.number")
    state = serializers.ChoiceField(MeasurementState.choices)
    job = serializers.IntegerField(source="job_id", allow_null=True)
    plan = serializers.DictField()
    axes = serializers.DictField(child=serializers.ListField(child=serializers.CharField()))
    present = serializers.DictField(child=serializers.CharField())
    machine = serializers.DictField()
    trials = TrialSerializer(many=True)
    chosen = serializers.DictField(child=serializers.CharField(), help_text="{} before the search has ended.")
    difference = serializers.SerializerMethodField(help_text="Of config.pbtxt, as a unified diff.")
    gain = GainSerializer(allow_null=True)
    applied = serializers.DictField()
    created_by = serializers.CharField(source="created_by_name")

    class Meta:
        model = models.Tuning
        fields = [
            "id",
            "version",
            "state",
            "note",
            "job",
            "release",
            "plan",
            "axes",
            "present",
            "machine",
            "trials",
            "chosen",
            "difference",
            "gain",
            "applied",
            "created_by",
            "created_at",
            "finished_at",
        ]

    def get_difference(self, tuning: models.Tuning) -> str:
        return difference_of(tuning) if tuning.chosen else ""


class CanaryRequestSerializer(serializers.Serializer[Any]):
    override = serializers.CharField(
        required=False, allow_blank=True, max_length=500, help_text="Why the new version may miss the model's budget."
    )


class AppliedSerializer(serializers.Serializer[Any]):
    releases = serializers.DictField(child=serializers.IntegerField(), help_text="The new release of each model.")

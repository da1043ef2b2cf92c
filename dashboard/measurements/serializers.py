"""The shapes of measurements as JSON in the REST API. The rules are in services and in measurements.plan."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.measurements.plan import ENCODINGS, INPUTS, LOOPS, MOST_LOADS, WHERE
from dashboard.shared.choices import MeasurementState


class PlanFieldsSerializer(serializers.Serializer[Any]):
    """models.measurement.MeasurementPlan"""

    where = serializers.ChoiceField(list(WHERE), required=False)
    loop = serializers.ChoiceField(list(LOOPS), required=False)
    loads = serializers.ListField(
        child=serializers.FloatField(),
        required=False,
        max_length=MOST_LOADS,
        help_text="Numbers of clients in a closed loop; requests a second in an open loop.",
    )
    encoding = serializers.ChoiceField(list(ENCODINGS), required=False)
    inputs = serializers.ChoiceField(list(INPUTS), required=False)
    rows = serializers.IntegerField(required=False, help_text="The first dimension of inputs made from the signature.")
    warmup_s = serializers.FloatField(required=False)
    window_s = serializers.FloatField(required=False)
    least_windows = serializers.IntegerField(required=False)
    most_windows = serializers.IntegerField(required=False)
    variation = serializers.FloatField(
        required=False, help_text="A load is stable, and ends, at this coefficient of variation of its last windows."
    )
    most_cpu = serializers.FloatField(
        required=False, help_text="Running server: the share of the processors at which the measurement stops."
    )
    most_p99_growth = serializers.FloatField(
        required=False, help_text="Running server: the growth of the clients' p99 at which it stops; 0.5 is half."
    )
    most_pending = serializers.IntegerField(
        required=False, help_text="Running server: the number of waiting requests at which it stops."
    )


class MeasurementRequestSerializer(PlanFieldsSerializer):
    """The fields of a plan that differ from its defaults. text: the configuration to measure on a server of its own."""

    text = serializers.CharField(required=False, trim_whitespace=False)


class FigureSerializer(serializers.Serializer[Any]):
    """models.measurement.Figure"""

    value = serializers.FloatField()
    spread = serializers.FloatField(allow_null=True, help_text="Half of the 95 % confidence interval.")


class BatchTimesSerializer(serializers.Serializer[Any]):
    """models.measurement.BatchTimes"""

    size = serializers.IntegerField()
    executions = serializers.IntegerField()
    input = serializers.FloatField()
    compute = serializers.FloatField()
    output = serializers.FloatField()


class LoadFiguresSerializer(serializers.Serializer[Any]):
    """models.measurement.LoadFigures"""

    load = serializers.FloatField()
    windows = serializers.IntegerField()
    stable = serializers.BooleanField()
    variation = serializers.FloatField(allow_null=True)
    warmup = serializers.DictField()
    per_second = FigureSerializer()
    mean_ms = FigureSerializer(allow_null=True)
    p50_ms = FigureSerializer(allow_null=True)
    p95_ms = FigureSerializer(allow_null=True)
    p99_ms = FigureSerializer(allow_null=True)
    requests = serializers.IntegerField()
    failures = serializers.IntegerField()
    reasons = serializers.DictField(child=serializers.IntegerField())
    split = serializers.DictField(
        child=FigureSerializer(),
        help_text="Parts of the mean latency in ms: queue, input, compute, output, other, wire.",
    )
    batches = BatchTimesSerializer(many=True)
    cpu_cores = FigureSerializer(allow_null=True)
    memory_bytes = serializers.IntegerField(allow_null=True)
    energy_j = FigureSerializer(allow_null=True)


class MeasurementSerializer(serializers.ModelSerializer[models.Measurement]):
    version = serializers.IntegerField(source="version.number")
    state = serializers.ChoiceField(MeasurementState.choices)
    job = serializers.IntegerField(source="job_id", allow_null=True)
    plan = serializers.DictField()
    machine = serializers.DictField()
    loads = LoadFiguresSerializer(many=True)
    created_by = serializers.CharField(source="created_by_name")

    class Meta:
        model = models.Measurement
        fields = [
            "id",
            "version",
            "state",
            "note",
            "job",
            "release",
            "config",
            "sha256",
            "plan",
            "machine",
            "loads",
            "created_by",
            "created_at",
            "finished_at",
        ]


class DifferenceSerializer(serializers.Serializer[Any]):
    """measurements.comparison.Difference"""

    load = serializers.FloatField()
    name = serializers.CharField()
    first = FigureSerializer(allow_null=True)
    second = FigureSerializer(allow_null=True)
    change = serializers.FloatField(allow_null=True, help_text="0.12: the second is 12 % higher.")
    spread = serializers.FloatField(allow_null=True)
    better = serializers.BooleanField(allow_null=True, help_text="Null for no difference beyond the spread.")
    words = serializers.CharField()


class MeasurementComparisonSerializer(serializers.Serializer[Any]):
    """measurements.comparison.Comparison"""

    first = serializers.IntegerField(source="first.pk")
    second = serializers.IntegerField(source="second.pk")
    differences = DifferenceSerializer(many=True)
    unlike = serializers.ListField(child=serializers.CharField())
    missing = serializers.ListField(child=serializers.FloatField())


class PlaceSerializer(serializers.Serializer[Any]):
    """measurements.comparison.Place"""

    measurement = serializers.IntegerField(source="measurement.pk")
    model = serializers.CharField(source="measurement.version.model.name")
    version = serializers.IntegerField(source="measurement.version.number")
    format = serializers.CharField(source="measurement.version.format")
    figures = LoadFiguresSerializer()
    differences = DifferenceSerializer(many=True, help_text="From the first measurement that has this load.")


class LoadComparisonSerializer(serializers.Serializer[Any]):
    """measurements.comparison.LoadComparison"""

    load = serializers.FloatField()
    words = serializers.CharField()
    places = PlaceSerializer(many=True)


class SideBySideSerializer(serializers.Serializer[Any]):
    """measurements.comparison.SideBySide"""

    loads = LoadComparisonSerializer(many=True)
    unlike = serializers.ListField(child=serializers.CharField())


class BudgetSerializer(serializers.Serializer[Any]):
    """models.model.Budget; null for no budget."""

    p99_ms = serializers.FloatField(allow_null=True)
    per_second = serializers.FloatField(allow_null=True)

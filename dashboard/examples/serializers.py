"""The shapes of examples as JSON in the REST API. The rules are in services."""

import math
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from dashboard import models
from dashboard.servers.serializers import AskedServerSerializer
from dashboard.shared.choices import ExampleSource


class OutcomeSerializer(serializers.Serializer[Any]):
    """models.example.GoldenOutcome"""

    passed = serializers.BooleanField()
    detail = serializers.CharField()
    version = serializers.CharField(help_text="The version that answered.")
    release = serializers.IntegerField(help_text="The release that was checked, or that served; 0 for none.")
    checked = serializers.BooleanField(help_text="Run by a server before the release served, not by a person.")
    ms = serializers.FloatField()
    at = serializers.DateTimeField()


class ExampleSerializer(serializers.ModelSerializer[models.Example]):
    """An example without its tensors."""

    class Meta:
        model = models.Example
        fields = [
            "name",
            "golden",
            "absolute",
            "relative",
            "inputs",
            "size_bytes",
            "outcome",
            "source",
            "created_by",
            "created_at",
        ]

    created_by = serializers.CharField(source="created_by_name")
    inputs = serializers.CharField(read_only=True, help_text="Its input tensors in words.")
    outcome = OutcomeSerializer(allow_null=True, help_text="The outcome of its last run as a golden request.")


class ExampleDetailSerializer(ExampleSerializer):
    request = serializers.DictField(help_text="A V2 inference request; `base64` holds bytes that JSON cannot carry.")
    expected = serializers.DictField(allow_null=True, help_text="The expected outputs.")

    class Meta(ExampleSerializer.Meta):
        fields = [*ExampleSerializer.Meta.fields, "request", "expected"]


class ExampleChangeSerializer(serializers.Serializer[Any]):
    """The fields to change."""

    name = serializers.CharField(required=False, allow_blank=True, max_length=1000)
    request = serializers.JSONField(required=False)
    expected = serializers.JSONField(required=False, allow_null=True)
    golden = serializers.BooleanField(required=False)
    absolute = serializers.FloatField(required=False)
    relative = serializers.FloatField(required=False)


class ExampleRequestSerializer(ExampleChangeSerializer):
    name = serializers.CharField(allow_blank=True, max_length=1000)
    request = serializers.JSONField()
    source = serializers.ChoiceField(ExampleSource.choices, required=False)  # type: ignore[assignment]  # a field, not its source


class AskSerializer(AskedServerSerializer):
    version = serializers.CharField(
        required=False, allow_blank=True, default="", help_text="A number or an alias; empty for the server's choice."
    )


class AnswerSerializer(serializers.Serializer[Any]):
    outputs = serializers.ListField(child=serializers.DictField())
    version = serializers.CharField()


@extend_schema_field({"oneOf": [{"type": "number"}, {"type": "string", "enum": ["Infinity"]}], "nullable": True})
class DifferenceField(serializers.Field[float, float, float | str, object]):
    """A difference of numbers, with a word for infinity, which JSON lacks."""

    def to_representation(self, value: float) -> float | str:
        return value if math.isfinite(value) else "Infinity"


class OutputVerdictSerializer(serializers.Serializer[Any]):
    """repository.core.golden.OutputVerdict"""

    name = serializers.CharField()
    largest = DifferenceField(help_text="The largest difference of two numbers; null without numbers.")
    detail = serializers.CharField()


class GoldenResultSerializer(serializers.Serializer[Any]):
    """examples.runs.GoldenResult"""

    name = serializers.CharField()
    passed = serializers.BooleanField()
    detail = serializers.CharField()
    version = serializers.CharField()
    ms = serializers.FloatField()
    outputs = OutputVerdictSerializer(many=True)


class GoldenRunSerializer(serializers.Serializer[Any]):
    passed = serializers.BooleanField(help_text="Whether all of them passed.")
    results = GoldenResultSerializer(many=True)


class SamplingRequestSerializer(AskedServerSerializer):
    count = serializers.IntegerField(required=False, default=5)
    seconds = serializers.IntegerField(required=False, default=30)
    consent = serializers.BooleanField(
        required=False, default=False, help_text="Confirms that the caller may see the requests of clients."
    )


class CandidateSerializer(serializers.Serializer[Any]):
    """examples.traffic.Candidate"""

    version = serializers.IntegerField()
    inputs = serializers.CharField()
    request = serializers.DictField()
    expected = serializers.DictField()


class SamplingSerializer(serializers.Serializer[Any]):
    """examples.traffic.Sampling"""

    candidates = CandidateSerializer(many=True)
    skipped = serializers.DictField(
        child=serializers.IntegerField(), help_text="Requests that cannot be examples: too_large, failed, unfit."
    )
    seconds = serializers.FloatField()

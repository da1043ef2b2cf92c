"""The shapes of advice as JSON in the REST API."""

from typing import Any

from rest_framework import serializers


class AdviceFiguresSerializer(serializers.Serializer[Any]):
    """advice.Figures"""

    p50_ms = serializers.FloatField()
    p95_ms = serializers.FloatField()
    p99_ms = serializers.FloatField()
    rows = serializers.FloatField(help_text="The mean rows of a batch.")
    busy = serializers.FloatField(help_text="The mean number of instances that execute a batch.")
    room = serializers.FloatField(help_text="How many times the present requests the instances can execute at least.")


class AdviceEstimateSerializer(serializers.Serializer[Any]):
    """advice.Estimate"""

    value = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class ChangeSerializer(serializers.Serializer[Any]):
    """candidates.Change"""

    field = serializers.CharField()
    before = serializers.CharField()
    after = serializers.CharField()


class AdviceSerializer(serializers.Serializer[Any]):
    """advice.Advice"""

    changes = ChangeSerializer(many=True)
    text = serializers.CharField(source="document.text", help_text="The changed config.pbtxt.")
    difference = serializers.CharField()
    why = serializers.CharField()
    effect = serializers.CharField(help_text="What it gains and costs.")
    now = AdviceFiguresSerializer(help_text="As measured.")
    then = AdviceFiguresSerializer(help_text="As predicted.")
    p99_ms = AdviceEstimateSerializer(help_text="The predicted p99 with its uncertainty.")
    p50_ms = AdviceEstimateSerializer(help_text="The predicted p50 with its uncertainty.")
    rows = AdviceEstimateSerializer(help_text="The predicted `rows` with their uncertainty.")
    busy = AdviceEstimateSerializer(help_text="The predicted `busy` with its uncertainty.")


class FindingSerializer(serializers.Serializer[Any]):
    """advice.Finding"""

    advice = AdviceSerializer(allow_null=True)
    reason = serializers.CharField(help_text="Why there is no advice; empty if there is one.")

"""The shapes of objectives over REST."""

from typing import Any

from rest_framework import serializers


class ObjectiveRequestSerializer(serializers.Serializer[Any]):
    percent = serializers.FloatField(allow_null=True, help_text="Of all requests, such as 99.9; null removes it.")
    latency_ms = serializers.FloatField(
        allow_null=True, required=False, default=None, help_text="A slower answer counts as bad; null for no limit."
    )


class BudgetOfObjectiveSerializer(serializers.Serializer[Any]):
    """objectives.burn.Budget"""

    requests = serializers.IntegerField(help_text="Of the last 30 days.")
    bad = serializers.IntegerField()
    allowed = serializers.FloatField()
    left = serializers.FloatField(allow_null=True, help_text="Share of the budget; negative if overspent.")
    burn = serializers.FloatField(help_text="Burn rate of the last six hours.")
    ends_in_s = serializers.FloatField(allow_null=True, help_text="Until it is used up at that rate.")


class BurnWindowSerializer(serializers.Serializer[Any]):
    """objectives.burn.Burning"""

    kind = serializers.CharField(source="rule.kind")
    factor = serializers.FloatField(source="rule.factor")
    long_s = serializers.IntegerField(source="rule.long_s")
    short_s = serializers.IntegerField(help_text="Longer than the rule's with few requests.")
    long = serializers.FloatField(help_text="Burn rate of the long window.")
    short = serializers.FloatField(help_text="Burn rate of the short window.")
    burns = serializers.BooleanField(help_text="Both are beyond the factor, by more than chance.")


class DownSerializer(serializers.Serializer[Any]):
    """objectives.selectors.Down"""

    server = serializers.CharField()
    seconds = serializers.FloatField(help_text="Of the last 30 days in which it did not answer.")
    share = serializers.FloatField(help_text="Of the time that the objective would allow, if it were about time.")


class ObjectiveSerializer(serializers.Serializer[Any]):
    """objectives.selectors.Standing; all null for no objective."""

    percent = serializers.FloatField(source="objective.percent", allow_null=True)
    latency_ms = serializers.FloatField(source="objective.latency_ms", allow_null=True)
    budget = BudgetOfObjectiveSerializer(allow_null=True)
    failed = serializers.IntegerField(allow_null=True)
    slow = serializers.IntegerField(allow_null=True)
    windows = BurnWindowSerializer(many=True)
    down = DownSerializer(many=True, help_text="Outages: their requests are in no count.")


class ModelBudgetSerializer(serializers.Serializer[Any]):
    model = serializers.CharField()
    percent = serializers.FloatField()
    latency_ms = serializers.FloatField(allow_null=True)
    budget = BudgetOfObjectiveSerializer()

"""The shapes of usage and quotas as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.usage.selectors import quota_use


class UsedSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    requests = serializers.IntegerField()
    failed = serializers.IntegerField()
    refused = serializers.IntegerField(help_text="Requests over a quota. They are not among `requests` or `failed`.")
    rows = serializers.IntegerField()
    compute_seconds = serializers.FloatField(source="compute_s")
    bytes_in = serializers.IntegerField()
    bytes_out = serializers.IntegerField()
    tokens_in = serializers.IntegerField()
    tokens_out = serializers.IntegerField()
    price = serializers.FloatField(allow_null=True, help_text="null unless SLIPWAY_DEVICE_HOUR_PRICE is set.")


class UsageSerializer(serializers.Serializer[Any]):
    month = serializers.CharField()
    by = serializers.CharField()
    currency = serializers.CharField(allow_blank=True)
    until = serializers.DateTimeField(allow_null=True, help_text="What the server answered later is not counted yet.")
    total = UsedSerializer()
    rows = UsedSerializer(many=True)


class QuotaRequestSerializer(serializers.Serializer[Any]):
    of = serializers.CharField(max_length=10)
    name = serializers.CharField(max_length=150, help_text="A person, a group, or the first characters of a token.")
    requests_per_day = serializers.IntegerField(required=False, allow_null=True)
    rows_per_day = serializers.IntegerField(required=False, allow_null=True)
    compute_seconds_per_day = serializers.FloatField(required=False, allow_null=True)
    requests_per_second = serializers.FloatField(required=False, allow_null=True)


class QuotaSerializer(serializers.ModelSerializer[models.Quota]):
    of = serializers.CharField()
    name = serializers.CharField()
    whose = serializers.CharField(source="label", help_text="With the name of a token and its person.")
    used_today = serializers.SerializerMethodField()

    class Meta:
        model = models.Quota
        fields = ["id", "of", "name", "whose", *models.Quota.LIMITS, "used_today"]

    def get_used_today(self, quota: models.Quota) -> dict[str, float]:
        return {one.limit: one.used for one in quota_use(quota) if one.used is not None}

"""The shapes of captures as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.captures.services import MOST_ACCOUNTS, MOST_HOURS, MOST_KEPT_DAYS, MOST_MIB, MOST_VERSIONS
from dashboard.models import Capture

_MASK = 'Name of a tensor -> "drop", "hash" (BYTES) or "round" with a step, such as "round 0.1".'


class CountsSerializer(serializers.Serializer[Any]):
    """repository.core.captures.Counts"""

    chosen = serializers.IntegerField()
    written = serializers.IntegerField()
    waiting = serializers.IntegerField()
    dropped = serializers.DictField(child=serializers.IntegerField())
    lost = serializers.IntegerField()
    bytes = serializers.IntegerField()
    trouble = serializers.CharField()
    ended = serializers.CharField(help_text='"time", "bytes" or "stopped"; "" while it runs.')
    at = serializers.FloatField()


class CaptureSerializer(serializers.ModelSerializer[Capture]):
    running = serializers.BooleanField()
    counts = CountsSerializer(allow_null=True, help_text="null until the server has begun.")
    percent = serializers.SerializerMethodField()
    errors_only = serializers.BooleanField(source="wanted.errors_only")
    versions = serializers.ListField(source="wanted.versions", child=serializers.IntegerField())
    accounts = serializers.SerializerMethodField()
    mib = serializers.SerializerMethodField()

    class Meta:
        model = Capture
        fields = [
            *(
                "id",
                "percent",
                "errors_only",
                "versions",
                "accounts",
                "mib",
                "running",
                "counts",
                "created_by_name",
                "created_at",
            ),
            *("ends_at", "keep_until"),
        ]

    def get_percent(self, capture: Capture) -> float:
        return capture.wanted["share"] * 100

    def get_accounts(self, capture: Capture) -> list[str]:
        return capture.wanted.get("accounts", [])

    def get_mib(self, capture: Capture) -> int:
        return capture.wanted["bytes"] >> 20


class CaptureRequestSerializer(serializers.Serializer[Any]):
    percent = serializers.FloatField(required=False, help_text="Of the requests; 5 if absent.")
    hours = serializers.FloatField(required=False, help_text=f"24 if absent; at most {MOST_HOURS}.")
    errors_only = serializers.BooleanField(required=False)
    versions = serializers.ListField(
        child=serializers.IntegerField(), required=False, max_length=MOST_VERSIONS, help_text="Only these; [] for all."
    )
    accounts = serializers.ListField(
        child=serializers.CharField(max_length=300),
        required=False,
        max_length=MOST_ACCOUNTS,
        help_text='Only requests of these people, or with these tokens ("person: token"); [] for all.',
    )
    mib = serializers.IntegerField(required=False, help_text=f"1024 if absent; at most {MOST_MIB}.")
    keep_days = serializers.IntegerField(
        required=False, help_text=f"After its end; 30 if absent, at most {MOST_KEPT_DAYS}."
    )
    inputs = serializers.DictField(child=serializers.CharField(max_length=100), required=False, help_text=_MASK)
    outputs = serializers.DictField(child=serializers.CharField(max_length=100), required=False, help_text=_MASK)
    consent = serializers.BooleanField(help_text="The caller may keep what clients send.")


class CaptureFileSerializer(serializers.Serializer[Any]):
    first = serializers.IntegerField(help_text="The number of its first request.")
    rows = serializers.IntegerField()


class ReadersSerializer(serializers.Serializer[Any]):
    readers = serializers.ListField(
        child=serializers.CharField(max_length=150), max_length=1000, help_text="Names; [] for all who may operate."
    )

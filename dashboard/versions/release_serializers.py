"""The JSON of releases in REST: only its shapes; rules live in services."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.shared.choices import ReleaseKind, ReleaseState


class SpanSerializer(serializers.ModelSerializer[models.ReleaseSpan]):
    class Meta:
        model = models.ReleaseSpan
        fields = ["started_at", "ended_at"]


class ReleaseSerializer(serializers.Serializer[Any]):
    """releases.selectors.ReleaseLife"""

    number = serializers.IntegerField(source="release.number")
    state = serializers.ChoiceField(ReleaseState.choices)
    kind = serializers.ChoiceField(ReleaseKind.choices, source="release.kind")
    versions = serializers.ListField(child=serializers.IntegerField(), source="release.versions")
    aliases = serializers.DictField(child=serializers.IntegerField(), source="release.aliases")
    summary = serializers.CharField(source="release.summary")
    returns_to = serializers.IntegerField(source="release.returns_to.number", default=None, allow_null=True)
    error = serializers.CharField()
    created_by = serializers.CharField(source="release.created_by_name")
    created_at = serializers.DateTimeField(source="release.created_at")
    spans = SpanSerializer(many=True)


class ReleaseDetailSerializer(ReleaseSerializer):
    text = serializers.CharField(source="release.text")
    sha256 = serializers.CharField(source="release.sha256")
    steps = serializers.ListField(child=serializers.DictField(), source="check.steps", default=list)


class GoingBackSerializer(serializers.Serializer[Any]):
    """releases.going_back.GoingBack"""

    release = serializers.IntegerField(source="release.number")
    works = serializers.BooleanField()
    refusals = serializers.ListField(child=serializers.CharField())
    versions_now = serializers.ListField(child=serializers.IntegerField())
    versions_then = serializers.ListField(child=serializers.IntegerField())
    aliases_now = serializers.DictField(child=serializers.IntegerField())
    aliases_then = serializers.DictField(child=serializers.IntegerField())
    text = serializers.CharField()
    diff = serializers.CharField()
    effect = serializers.ChoiceField(["none", "in_place", "versions", "reload"])


class AliasesSerializer(serializers.Serializer[Any]):
    aliases = serializers.DictField(child=serializers.IntegerField(min_value=1), allow_empty=True)

"""The shapes of models as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

# See catalog.selectors.ModelSummary.
MODEL_WORDS = ("ready", "asleep", "loading", "unloading", "degraded", "failed", "unloaded")


class ModelLogSerializer(serializers.Serializer[Any]):
    lines = serializers.ListField(child=serializers.CharField())


class ModelSummarySerializer(serializers.Serializer[Any]):
    """catalog.selectors.ModelSummary"""

    name = serializers.CharField()
    state = serializers.ChoiceField(MODEL_WORDS)
    reason = serializers.CharField()
    desired_state = serializers.CharField(source="model.desired_state")
    live_versions = serializers.ListField(child=serializers.IntegerField())
    archive_versions = serializers.DictField(
        child=serializers.CharField(), help_text="The versions that archives state, by the number of the version."
    )
    serving_release = serializers.IntegerField(source="serving.number", default=None, allow_null=True)
    wanted_versions = serializers.ListField(child=serializers.IntegerField())
    wanted_release = serializers.IntegerField(source="wanted.number", default=None, allow_null=True)
    wanted_since = serializers.DateTimeField(allow_null=True)
    wanted_by = serializers.CharField()
    backend = serializers.CharField()
    version_count = serializers.IntegerField()
    latest_number = serializers.IntegerField(allow_null=True)
    description = serializers.CharField(source="model.description")
    tags = serializers.ListField(source="model.tags", child=serializers.CharField())
    drift = serializers.ListField(source="model.drift", child=serializers.CharField())
    created_at = serializers.DateTimeField(source="model.created_at")


class UnmanagedSerializer(serializers.Serializer[Any]):
    names = serializers.ListField(child=serializers.CharField())


class ModelChangeSerializer(serializers.Serializer[Any]):
    description = serializers.CharField(required=False, allow_blank=True)
    tags = serializers.ListField(child=serializers.CharField(), required=False)

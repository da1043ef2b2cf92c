"""The shapes of models as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.models import NotedRequest

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
    servers = serializers.IntegerField(
        source="spread.servers", help_text="How many servers of production answer and should serve it."
    )
    serving_servers = serializers.IntegerField(
        source="spread.serving", help_text="On how many of these every wanted version can answer."
    )
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


class ToldByClients(serializers.CharField):
    """A text that may quote what clients sent: null without the right CLIENT_DATA (`sees` of the context)."""

    def __init__(self, **given: Any) -> None:
        super().__init__(read_only=True, allow_null=True, **given)

    def to_representation(self, value: str) -> str | None:  # type: ignore[override]
        return super().to_representation(value) if self.context.get("sees") else None


class NotedRequestSerializer(serializers.Serializer[Any]):
    """models.noted.NotedRequest. Times in ms, null if not measured."""

    at = serializers.DateTimeField(source="moment", help_text="When it arrived.")
    version = serializers.IntegerField()
    server = serializers.CharField(source="server.name")
    failed = serializers.BooleanField()
    duration_ms = serializers.FloatField()
    phases_ms = serializers.SerializerMethodField(help_text="queue, input, compute and output; empty if not measured.")
    rows = serializers.IntegerField(source="details.rows")
    batch_size = serializers.IntegerField(source="details.batch_size", allow_null=True)
    arm = serializers.CharField(source="details.arm", allow_blank=True)
    request = serializers.CharField(source="details.id", allow_blank=True, help_text="The id that its client gave.")
    trace = serializers.CharField(source="details.trace", allow_blank=True, help_text="The id of its trace.")
    code = serializers.CharField(source="details.code", allow_blank=True)
    reason = serializers.CharField(source="details.reason", allow_blank=True)
    message = ToldByClients(source="details.message")

    def get_phases_ms(self, row: NotedRequest) -> dict[str, float]:
        return {phase.name: phase.ms for phase in row.phases}


class FailureCauseSerializer(serializers.Serializer[Any]):
    """metrics.noted.FoundCause"""

    key = serializers.CharField(help_text="Names the cause in an address.")
    cause = ToldByClients(help_text="The message without its numbers and quoted parts.")
    code = serializers.CharField(allow_blank=True)
    reason = serializers.CharField(allow_blank=True)
    count = serializers.IntegerField()
    first_at = serializers.DateTimeField()
    last_at = serializers.DateTimeField()
    versions = serializers.IntegerField(help_text="How many versions failed by it.")
    example = NotedRequestSerializer(allow_null=True)


class NotedSerializer(serializers.Serializer[Any]):
    requests = NotedRequestSerializer(many=True)
    causes = FailureCauseSerializer(many=True)

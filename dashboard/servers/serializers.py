"""The shapes of inference servers as JSON in the REST API. The rules are in services."""

from rest_framework import serializers

from dashboard import models


class ServerStateSerializer(serializers.ModelSerializer[models.ServerState]):
    class Meta:
        model = models.ServerState
        fields = ["state", "pid", "started_at", "restarts", "last_reason", "checked_at", "info"]


class ModelStateSerializer(serializers.ModelSerializer[models.ModelState]):
    model = serializers.CharField(source="model_name")

    class Meta:
        model = models.ModelState
        fields = ["model", "version", "state", "reason", "updated_at"]


class ServerSerializer(serializers.ModelSerializer[models.Server]):
    state = ServerStateSerializer(default=None, allow_null=True)
    model_count = serializers.IntegerField(
        source="model_states.count",
        read_only=True,
        help_text="The number of versions on the server; `/servers/<name>/models` lists them.",
    )

    class Meta:
        model = models.Server
        fields = ["name", "http_url", "grpc_url", "metrics_url", "bundled", "state", "model_count"]


class EventSerializer(serializers.ModelSerializer[models.ServerEvent]):
    class Meta:
        model = models.ServerEvent
        fields = ["at", "kind", "model_name", "message"]

"""The shapes of jobs as JSON in the REST API. The rules are in services."""

from rest_framework import serializers

from dashboard import models


class JobSerializer(serializers.ModelSerializer[models.Job]):
    model = serializers.CharField(source="model.name", default=None, allow_null=True)
    created_by = serializers.CharField(source="created_by_name")

    class Meta:
        model = models.Job
        fields = [
            "id",
            "kind",
            "title",
            "state",
            "progress",
            "step",
            "log",
            "error",
            "params",
            "result",
            "model",
            "attempt",
            "cancel_requested",
            "created_by",
            "created_at",
            "started_at",
            "finished_at",
        ]

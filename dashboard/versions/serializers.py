"""What the API says of versions, and what it takes. Rules live in services; here are only shapes."""

from typing import Any

from rest_framework import serializers

from dashboard import models


class VersionSerializer(serializers.ModelSerializer[models.Version]):
    upload = serializers.UUIDField(source="upload_id", allow_null=True)
    created_by = serializers.CharField(source="created_by_name")

    class Meta:
        model = models.Version
        fields = [
            "number",
            "format",
            "filename",
            "size_bytes",
            "sha256",
            "signature",
            "details",
            "config",
            "note",
            "state",
            "upload",
            "created_by",
            "created_at",
        ]


class NoteSerializer(serializers.Serializer[Any]):
    note = serializers.CharField(allow_blank=True)


class MakeLiveSerializer(serializers.Serializer[Any]):
    """text: the configuration to serve it with, by default the present one."""

    load = serializers.BooleanField(default=True)
    text = serializers.CharField(required=False, trim_whitespace=False)

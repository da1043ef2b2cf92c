"""The shapes of uploads as JSON in the REST API. The rules are in services."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from dashboard import models


class UploadFileSerializer(serializers.ModelSerializer[models.UploadFile]):
    class Meta:
        model = models.UploadFile
        fields = ["number", "path", "size", "received", "sha256"]


_OF_A_ROW = [
    *("id", "user", "model_name", "state", "error", "size_bytes", "received_bytes", "chunk_bytes", "job"),
    *("created_at", "expires_at"),
]


class _UploadSerializer(serializers.ModelSerializer[models.Upload]):
    chunk_bytes = serializers.SerializerMethodField()
    job = serializers.IntegerField(source="job_id", allow_null=True)
    user = serializers.CharField(source="user_name")
    size_bytes = serializers.IntegerField(read_only=True)
    received_bytes = serializers.IntegerField(read_only=True)

    def get_chunk_bytes(self, upload: models.Upload) -> int:
        return int(settings.UPLOAD_CHUNK_BYTES)


class UploadRowSerializer(_UploadSerializer):
    """An upload in a list, without the names of its files and without the findings of the inspection."""

    file_count = serializers.IntegerField(read_only=True)

    class Meta:
        model = models.Upload
        fields = [*_OF_A_ROW, "file_count"]


class UploadSerializer(_UploadSerializer):
    files = UploadFileSerializer(many=True)

    class Meta:
        model = models.Upload
        fields = [*_OF_A_ROW, "files", "proposal"]


class UploadFileRequestSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(max_length=1024, trim_whitespace=False)
    size = serializers.IntegerField()
    sha256 = serializers.CharField(required=False, allow_blank=True, default="")


class UploadRequestSerializer(serializers.Serializer[Any]):
    model_name = serializers.CharField(max_length=200)
    files = UploadFileRequestSerializer(many=True, allow_empty=False)
    new_model = serializers.BooleanField(
        default=False,
        help_text="Refuses the upload if a model of that name exists, instead of making a version of it.",
    )


class MoreFilesSerializer(serializers.Serializer[Any]):
    files = UploadFileRequestSerializer(many=True, allow_empty=False)


class ChunkSerializer(serializers.Serializer[Any]):
    received = serializers.IntegerField()
    size = serializers.IntegerField()


class PublishSerializer(serializers.Serializer[Any]):
    """config_text: by default the model's present configuration, or for a new model the proposed one."""

    config_text = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    base_release = serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        help_text="The release that config_text was made from; by default the one at the inspection.",
    )
    note = serializers.CharField(required=False, default="", allow_blank=True)
    make_live = serializers.BooleanField(default=False)
    load = serializers.BooleanField(
        default=True,
        help_text="Load the model as its version policy says, perhaps with this version; false changes nothing that serves.",
    )

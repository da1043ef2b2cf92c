"""The shapes of uploads as JSON in the REST API. The rules are in services."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from dashboard import models
from dashboard.uploads.fetching import source_title
from dashboard.uploads.sources.table import SOURCES


class UploadFileSerializer(serializers.ModelSerializer[models.UploadFile]):
    class Meta:
        model = models.UploadFile
        fields = ["number", "path", "size", "received", "sha256"]


_OF_A_ROW = [
    *("id", "user", "model_name", "state", "error", "size_bytes", "received_bytes", "chunk_bytes", "job"),
    *("created_at", "expires_at", "source"),
]


class _UploadSerializer(serializers.ModelSerializer[models.Upload]):
    chunk_bytes = serializers.SerializerMethodField()
    job = serializers.IntegerField(source="job_id", allow_null=True)
    user = serializers.CharField(source="user_name")
    size_bytes = serializers.IntegerField(read_only=True)
    received_bytes = serializers.IntegerField(read_only=True)

    source = serializers.SerializerMethodField(  # type: ignore[assignment]  # the metaclass takes it for a field
        help_text="Where a job fetches the files from; empty if the client sends them."
    )

    def get_source(self, upload: models.Upload) -> str:
        return source_title(upload)

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


class OptionSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    kind = serializers.ChoiceField(["text", "choice", "number", "switch", "json"])
    default = serializers.JSONField()
    choices = serializers.ListField(child=serializers.CharField(allow_blank=True))
    sentence = serializers.CharField()


class OfferSerializer(serializers.Serializer[Any]):
    """A recipe that takes the files of an upload. environment_ready: whether its packages are here, or must be fetched first.
    missing_packages: those that only the product's own environment can have, and lacks."""

    recipe = serializers.CharField(source="recipe.name")
    title = serializers.CharField(source="recipe.title")
    takes = serializers.CharField(source="recipe.takes")
    makes = serializers.CharField(source="recipe.makes")
    options = OptionSerializer(source="recipe.options", many=True)
    loads_code = serializers.BooleanField()
    refusal = serializers.CharField(help_text="Why you may not start it; empty if you may.")
    environment = serializers.CharField()
    environment_ready = serializers.BooleanField(source="ready")
    missing_packages = serializers.ListField(source="missing", child=serializers.CharField())


class PickleImportsSerializer(serializers.Serializer[Any]):
    names = serializers.ListField(child=serializers.CharField())
    dangerous = serializers.ListField(child=serializers.CharField())
    unread = serializers.ListField(child=serializers.CharField(), help_text="Files that were not read to their end.")


class ConversionsSerializer(serializers.Serializer[Any]):
    """unkept_promises: what this machine cannot keep a recipe's program from, each with what is missing."""

    recipes = OfferSerializer(many=True)
    imports = PickleImportsSerializer(help_text="What the pickles among the files import.")
    unkept_promises = serializers.DictField(child=serializers.CharField())
    error = serializers.CharField(help_text="Why the last conversion came to nothing.")
    lineage = serializers.ListField(child=serializers.DictField(), help_text="Where the present files come from.")
    parts = serializers.ListField(child=serializers.UUIDField(), help_text="Uploads of models that this one calls.")


class ConvertSerializer(serializers.Serializer[Any]):
    recipe = serializers.CharField()
    options = serializers.DictField(required=False, default=dict)
    run_code = serializers.BooleanField(
        default=False, help_text="Confirms that the recipe may run code of the files; see `imports`."
    )
    unprotected = serializers.BooleanField(
        default=False, help_text="Confirms that it may run without the promises in `unkept_promises`."
    )


class UploadFileRequestSerializer(serializers.Serializer[Any]):
    path = serializers.CharField(max_length=1024, trim_whitespace=False)
    size = serializers.IntegerField()
    sha256 = serializers.CharField(required=False, allow_blank=True, default="")


class UploadRequestSerializer(serializers.Serializer[Any]):
    model_name = serializers.CharField(max_length=200)
    files = UploadFileRequestSerializer(many=True, allow_empty=False, required=False)
    source = serializers.DictField(  # type: ignore[assignment]  # the metaclass takes it for a field
        child=serializers.CharField(max_length=2000, allow_blank=True),
        required=False,
        help_text=f"In place of files: `kind`, one of {', '.join(SOURCES)}, and the fields of that source.",
    )
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

"""What the API says, and what it takes. Rules live in services; here are only shapes."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from dashboard import models
from dashboard.access.authorisation import Actor, token_rights
from dashboard.shared import choices

# See catalog.selectors.ModelSummary.
MODEL_WORDS = ("ready", "asleep", "loading", "unloading", "degraded", "failed", "unloaded")


class ErrorSerializer(serializers.Serializer):
    error = serializers.CharField()


class ModelSummarySerializer(serializers.Serializer):
    """catalog.selectors.ModelSummary"""

    name = serializers.CharField()
    state = serializers.ChoiceField(MODEL_WORDS)
    reason = serializers.CharField()
    desired_state = serializers.CharField(source="model.desired_state")
    live_versions = serializers.ListField(child=serializers.IntegerField())
    live_since = serializers.DateTimeField(allow_null=True)
    live_by = serializers.CharField()
    backend = serializers.CharField()
    version_count = serializers.IntegerField()
    latest_number = serializers.IntegerField(allow_null=True)
    description = serializers.CharField(source="model.description")
    tags = serializers.ListField(source="model.tags", child=serializers.CharField())
    drift = serializers.ListField(source="model.drift", child=serializers.CharField())
    created_at = serializers.DateTimeField(source="model.created_at")


class UnmanagedSerializer(serializers.Serializer):
    names = serializers.ListField(child=serializers.CharField())


class ModelChangeSerializer(serializers.Serializer):
    description = serializers.CharField(required=False, allow_blank=True)
    tags = serializers.ListField(child=serializers.CharField(), required=False)


class VersionSerializer(serializers.ModelSerializer):
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
            "note",
            "state",
            "upload",
            "created_by",
            "created_at",
        ]


class NoteSerializer(serializers.Serializer):
    note = serializers.CharField(allow_blank=True)


class MakeLiveSerializer(serializers.Serializer):
    load = serializers.BooleanField(default=True)


class RollBackSerializer(serializers.Serializer):
    version = serializers.IntegerField(required=False, min_value=1)


class RevisionSerializer(serializers.ModelSerializer):
    created_by = serializers.CharField(source="created_by_name")

    class Meta:
        model = models.ConfigRevision
        fields = ["number", "text", "sha256", "summary", "created_by", "created_at"]


class ConfigSerializer(serializers.Serializer):
    """The adopted text, the form's view of it, and what was changed on disk since."""

    revision = serializers.IntegerField()
    text = serializers.CharField()
    fields_ = serializers.DictField()
    drift = serializers.ListField(child=serializers.CharField())

    def get_fields(self) -> dict[str, Any]:
        # "fields" is taken by the base class.
        found = super().get_fields()
        found["fields"] = found.pop("fields_")
        return found


class ConfigChangeSerializer(serializers.Serializer):
    text = serializers.CharField(allow_blank=True, trim_whitespace=False)
    summary = serializers.CharField(required=False, default="", allow_blank=True, max_length=300)
    base_revision = serializers.IntegerField(required=False, allow_null=True, default=None)


class ConfigPreviewRequestSerializer(serializers.Serializer):
    """Either `text`, or `fields` (configuration/fields.py) laid over `base`."""

    text = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    base = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "fields": serializers.DictField(required=False)}


class ProblemSerializer(serializers.Serializer):
    message = serializers.CharField()
    field = serializers.CharField()
    path = serializers.CharField()
    line = serializers.IntegerField()
    severity = serializers.ChoiceField(["error", "warning"])


class NeedSerializer(serializers.Serializer):
    """configuration.needs.Need"""

    right = serializers.CharField(source="right.name")
    sentence = serializers.CharField()

    def to_representation(self, need: Any) -> dict[str, str]:
        return {"right": need.right.name.lower(), "sentence": need.sentence}


class ConfigPreviewSerializer(serializers.Serializer):
    """configuration.services.ConfigPreview"""

    text = serializers.CharField()
    valid = serializers.BooleanField()
    problems = ProblemSerializer(many=True)
    diff = serializers.CharField()
    changed_fields = serializers.ListField(child=serializers.CharField())
    dropped_comments = serializers.ListField(child=serializers.CharField())
    effect = serializers.ChoiceField(["none", "in_place", "versions", "reload"])
    effect_sentence = serializers.CharField()
    needs = NeedSerializer(many=True)

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "fields": serializers.DictField()}


class RevertSerializer(serializers.Serializer):
    base_revision = serializers.IntegerField(required=False, allow_null=True, default=None)


class ReleaseSerializer(serializers.ModelSerializer):
    class Meta:
        model = models.Release
        fields = ["at", "versions", "reason", "actor_name"]


class UploadFileSerializer(serializers.ModelSerializer):
    class Meta:
        model = models.UploadFile
        fields = ["number", "path", "size", "received", "sha256"]


class UploadSerializer(serializers.ModelSerializer):
    files = UploadFileSerializer(many=True)
    chunk_bytes = serializers.SerializerMethodField()
    job = serializers.IntegerField(source="job_id", allow_null=True)
    user = serializers.CharField(source="user_name")

    class Meta:
        model = models.Upload
        fields = [
            "id",
            "user",
            "model_name",
            "state",
            "error",
            "files",
            "size_bytes",
            "received_bytes",
            "chunk_bytes",
            "proposal",
            "job",
            "created_at",
            "expires_at",
        ]

    size_bytes = serializers.IntegerField(read_only=True)
    received_bytes = serializers.IntegerField(read_only=True)

    def get_chunk_bytes(self, upload: models.Upload) -> int:
        return int(settings.UPLOAD_CHUNK_BYTES)


class UploadFileRequestSerializer(serializers.Serializer):
    path = serializers.CharField(max_length=1024, trim_whitespace=False)
    size = serializers.IntegerField()
    sha256 = serializers.CharField(required=False, allow_blank=True, default="")


class UploadRequestSerializer(serializers.Serializer):
    model_name = serializers.CharField(max_length=200)
    files = UploadFileRequestSerializer(many=True, allow_empty=False)


class ChunkSerializer(serializers.Serializer):
    received = serializers.IntegerField()
    size = serializers.IntegerField()


class PublishSerializer(serializers.Serializer):
    """config_text: by default the model's own, and for a new model the one that inspection proposes."""

    config_text = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    base_revision = serializers.IntegerField(
        required=False,
        allow_null=True,
        default=None,
        help_text="The configuration that config_text was made from; by default the one at the inspection.",
    )
    note = serializers.CharField(required=False, default="", allow_blank=True)
    make_live = serializers.BooleanField(default=False)
    load = serializers.BooleanField(default=True)


class JobSerializer(serializers.ModelSerializer):
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


class ServerStateSerializer(serializers.ModelSerializer):
    class Meta:
        model = models.ServerState
        fields = ["state", "pid", "started_at", "restarts", "last_reason", "checked_at", "info"]


class ModelStateSerializer(serializers.ModelSerializer):
    model = serializers.CharField(source="model_name")

    class Meta:
        model = models.ModelState
        fields = ["model", "version", "state", "reason", "updated_at"]


class ServerSerializer(serializers.ModelSerializer):
    state = ServerStateSerializer(default=None, allow_null=True)
    models = ModelStateSerializer(source="model_states", many=True)

    class Meta:
        model = models.Server
        fields = ["name", "http_url", "grpc_url", "metrics_url", "bundled", "state", "models"]


class EventSerializer(serializers.ModelSerializer):
    class Meta:
        model = models.ServerEvent
        fields = ["at", "kind", "model_name", "message"]


class TokenSerializer(serializers.ModelSerializer):
    opens = serializers.SerializerMethodField(help_text="Those of its rights that its person has at present.")

    class Meta:
        model = models.ApiToken
        fields = ["id", "name", "prefix", "rights", "opens", "model_names", "created_at", "expires_at", "last_used_at"]

    def get_opens(self, token: models.ApiToken) -> list[str]:
        return list(token_rights(Actor(user=token.user, token=token)))


class TokenRequestSerializer(serializers.Serializer):
    name = serializers.CharField(max_length=100)
    rights = serializers.ListField(child=serializers.ChoiceField(choices.TokenRight.choices), allow_empty=False)
    model_names = serializers.ListField(child=serializers.CharField(), required=False, default=list)
    expires_at = serializers.DateTimeField(required=False, allow_null=True, default=None)


class NewTokenSerializer(TokenSerializer):
    token = serializers.CharField(help_text="Shown once and never again.")

    class Meta(TokenSerializer.Meta):
        fields = [*TokenSerializer.Meta.fields, "token"]


class AuditSerializer(serializers.ModelSerializer):
    class Meta:
        model = models.AuditEntry
        fields = ["at", "actor_name", "action", "model_name", "summary", "before", "after"]


class AccountSerializer(serializers.Serializer):
    id = serializers.IntegerField()
    username = serializers.CharField()
    is_active = serializers.BooleanField()
    is_superuser = serializers.BooleanField()
    permissions = serializers.SerializerMethodField()

    def get_permissions(self, user: Any) -> list[str]:
        return sorted(permission.codename for permission in user.user_permissions.all())


class AccountRequestSerializer(serializers.Serializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(write_only=True, trim_whitespace=False)
    permissions = serializers.ListField(child=serializers.CharField(), default=list)


class AccountChangeSerializer(serializers.Serializer):
    permissions = serializers.ListField(child=serializers.CharField(), required=False)
    is_active = serializers.BooleanField(required=False)


class MeSerializer(serializers.Serializer):
    username = serializers.CharField()
    rights = serializers.ListField(child=serializers.CharField())
    token = serializers.CharField(allow_null=True)

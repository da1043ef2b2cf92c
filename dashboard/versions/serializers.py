"""The shapes of versions as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.configuration.serializers import ProblemSerializer


class VersionSerializer(serializers.ModelSerializer[models.Version]):
    upload = serializers.UUIDField(source="upload_id", allow_null=True)
    protected = serializers.CharField(
        default="", read_only=True, help_text="Why the version cannot be archived; empty if it can."
    )
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
            "protected",
            "upload",
            "created_by",
            "created_at",
        ]


class ArchiveSettingSerializer(serializers.Serializer[Any]):
    key = serializers.CharField()
    value = serializers.CharField()
    meaning = serializers.CharField(help_text="Its effect on this server; empty if only the handler reads it.")
    served = serializers.BooleanField(help_text="False if this server ignores the setting.")


class ArchivedFileSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    size = serializers.IntegerField()


class ShownTextSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    text = serializers.CharField()
    cut = serializers.BooleanField(help_text="Whether only the beginning is included.")


class ModelArchiveSerializer(serializers.Serializer[Any]):
    """catalog.archives.ModelArchive"""

    manifest = serializers.JSONField(source="manifest.whole", help_text="MAR-INF/MANIFEST.json, whole.")
    handler_file = serializers.CharField(help_text="Empty if the handler is part of the backend.")
    streams = serializers.BooleanField(help_text="Whether its code sends answers in several parts.")
    settings = ArchiveSettingSerializer(many=True)
    files = ArchivedFileSerializer(many=True)
    files_total = serializers.IntegerField()
    requirements = serializers.CharField()
    text = ShownTextSerializer(
        source="source", allow_null=True, help_text="The handler's source, or the file asked for."
    )


class NoteSerializer(serializers.Serializer[Any]):
    note = serializers.CharField(allow_blank=True)


class MakeLiveSerializer(serializers.Serializer[Any]):
    """text: the configuration with which the version is served, by default the present one. override: the reason for making a
    version live that does not keep the model's budget."""

    load = serializers.BooleanField(default=True)
    text = serializers.CharField(required=False, trim_whitespace=False)
    override = serializers.CharField(required=False, default="", allow_blank=True, max_length=500)


class ChoiceSerializer(serializers.Serializer[Any]):
    """versions.promotion.Choice"""

    text = serializers.CharField(source="document.text")
    diff = serializers.CharField()
    valid = serializers.BooleanField()
    problems = ProblemSerializer(many=True)
    effect = serializers.ChoiceField(["none", "in_place", "versions", "reload"])
    over_budget = serializers.CharField(
        help_text="Why it does not keep the budget, or pass the replay gate, with this configuration; empty if it does."
    )


class CallerSerializer(serializers.Serializer[Any]):
    """configuration.callers.Caller"""

    name = serializers.CharField()
    troubles = serializers.ListField(child=serializers.CharField())


class PromotionSerializer(serializers.Serializer[Any]):
    """versions.promotion.Promotion"""

    version = serializers.IntegerField(source="version.number")
    changes = serializers.ListField(child=serializers.CharField())
    refused = serializers.ListField(
        child=serializers.CharField(),
        help_text="Why requests that are answered now would be refused; empty if none would be.",
    )
    preferred = serializers.ChoiceField(["present", "fitting"])
    refusal = serializers.CharField(help_text="Why no version can be made live now; empty if one can.")
    over_budget = serializers.CharField(help_text="`over_budget` of the preferred configuration.")
    present = ChoiceSerializer()
    fitting = ChoiceSerializer(allow_null=True)
    examples = serializers.DictField(
        child=serializers.CharField(), help_text="The examples that do not fit the version, with the reasons."
    )
    callers = CallerSerializer(many=True, help_text="The ensembles that call the model, with their faults.")


class RetentionSerializer(serializers.Serializer[Any]):
    """models.model.Retention"""

    count = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=10_000)
    days = serializers.IntegerField(required=False, allow_null=True, min_value=1, max_value=36_500)


class VersionSettingSerializer(serializers.Serializer[Any]):
    """configuration.version_settings.Field"""

    name = serializers.CharField()
    own = serializers.IntegerField(allow_null=True, help_text="The value of this version alone; null for none.")
    otherwise = serializers.IntegerField(
        allow_null=True, help_text="The value that applies without `own`; null if the server decides."
    )
    said_by = serializers.CharField(help_text="The source of `otherwise`.")


class VersionSettingsSerializer(serializers.Serializer[Any]):
    release = serializers.IntegerField()
    settings = VersionSettingSerializer(many=True)


def _setting(what: str) -> serializers.IntegerField:
    return serializers.IntegerField(required=False, allow_null=True, min_value=1, help_text=what)


class VersionSettingsChangeSerializer(serializers.Serializer[Any]):
    """Null leaves a setting to the model."""

    max_batch_size = _setting("Rows that are executed together, at most.")
    max_queue_delay_microseconds = _setting("How long a request may wait for others to join its batch.")
    queue_max_size = _setting("Requests that may wait.")
    instances = _setting("The number of instances; for an archive, of its workers.")
    response_timeout_s = _setting("Of an archive: seconds for an answer.")
    startup_timeout_s = _setting("Of an archive: seconds for a worker to load the model.")
    base_release = serializers.IntegerField(required=False, allow_null=True, default=None)

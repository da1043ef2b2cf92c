"""The shapes of imports as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers


class ImportFolderSerializer(serializers.Serializer[Any]):
    """imports.sources.ImportFolder"""

    folder = serializers.CharField()
    archives = serializers.IntegerField(help_text="The number of archives directly in the folder.")
    config = serializers.BooleanField(help_text="Whether it has a config.properties.")


class ImportRequestSerializer(serializers.Serializer[Any]):
    """Either `folder` or `uploads`."""

    folder = serializers.CharField(default="", allow_blank=True, help_text="A folder of imports/folders.")
    uploads = serializers.ListField(
        child=serializers.UUIDField(),
        default=list,
        max_length=1000,
        help_text="Uploads of one archive each, with all bytes sent, and not completed yet.",
    )
    properties = serializers.CharField(
        default="",
        allow_blank=True,
        trim_whitespace=False,
        help_text="The text of config.properties of uploaded archives.",
    )
    dry_run = serializers.BooleanField(default=False, help_text="Report what would be imported, and change nothing.")


class ImportRowSerializer(serializers.Serializer[Any]):
    archive = serializers.CharField()
    model = serializers.CharField()
    version = serializers.CharField(help_text="The archive's own.")
    number = serializers.IntegerField(allow_null=True, help_text="The number of the version in the repository.")
    outcome = serializers.ChoiceField(["taken", "there", "failed", "would"])
    message = serializers.CharField()
    loaded = serializers.BooleanField(
        allow_null=True,
        help_text="Whether it serves; null if nobody asked for that, or no server was there to load it.",
    )


class ImportReportSerializer(serializers.Serializer[Any]):
    told = serializers.ListField(child=serializers.CharField(), help_text="Where the set-up was read from.")
    notes = serializers.ListField(
        child=serializers.CharField(), help_text="The settings that have no effect on this server."
    )
    rows = ImportRowSerializer(many=True)

"""The shapes of configurations as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard.configuration.needs import Need


class ConfigSerializer(serializers.Serializer[Any]):
    """The text of the newest release, its form fields, and the changes on disk since then."""

    release = serializers.IntegerField()
    text = serializers.CharField()
    fields_ = serializers.DictField()
    drift = serializers.ListField(child=serializers.CharField())

    def get_fields(self) -> dict[str, Any]:
        # "fields" is taken by the base class.
        found = super().get_fields()
        found["fields"] = found.pop("fields_")
        return found


class ConfigChangeSerializer(serializers.Serializer[Any]):
    text = serializers.CharField(allow_blank=True, trim_whitespace=False)
    summary = serializers.CharField(required=False, default="", allow_blank=True, max_length=300)
    base_release = serializers.IntegerField(required=False, allow_null=True, default=None)


class ClassNamesSerializer(serializers.Serializer[Any]):
    output = serializers.CharField(max_length=1000)
    names = serializers.ListField(
        child=serializers.CharField(allow_blank=True, max_length=1000),
        help_text="The first name is of class 0; an empty list removes the names.",
    )


class ConfigPreviewRequestSerializer(serializers.Serializer[Any]):
    """Either `text`, or `fields` (configuration/fields.py) to write into `base`."""

    text = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)
    base = serializers.CharField(required=False, allow_blank=True, trim_whitespace=False)

    def get_fields(self) -> dict[str, Any]:
        return {**super().get_fields(), "fields": serializers.DictField(required=False)}


class ProblemSerializer(serializers.Serializer[Any]):
    message = serializers.CharField()
    field = serializers.CharField()
    path = serializers.CharField()
    line = serializers.IntegerField()
    severity = serializers.ChoiceField(["error", "warning"])


class NeedSerializer(serializers.Serializer[Any]):
    """configuration.needs.Need"""

    right = serializers.CharField(source="right.name")
    sentence = serializers.CharField()

    def to_representation(self, need: Need) -> dict[str, str]:
        return {"right": need.right.name.lower(), "sentence": need.sentence}


class ConfigPreviewSerializer(serializers.Serializer[Any]):
    """configuration.services.ConfigPreview"""

    text = serializers.CharField(source="document.text")
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

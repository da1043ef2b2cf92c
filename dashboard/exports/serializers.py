"""The shapes of exports over REST."""

from rest_framework import serializers


class ExportRequestSerializer(serializers.Serializer[object]):
    address = serializers.CharField(
        max_length=500,
        help_text="Registry, repository and tag, such as registry.example/models/digits:3. The default tag is the release.",
    )

"""The shapes of releases as JSON in the REST API. The rules are in services."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from dashboard import models
from dashboard.configuration.callers import callers_of_release
from dashboard.configuration.clients import for_clients_of_release
from dashboard.releases.going_back import GoingBack
from dashboard.shared.choices import ReleaseKind, ReleaseState
from dashboard.versions.serializers import CallerSerializer


class SpanSerializer(serializers.ModelSerializer[models.ReleaseSpan]):
    class Meta:
        model = models.ReleaseSpan
        fields = ["started_at", "ended_at"]


class ReleaseSerializer(serializers.Serializer[Any]):
    """releases.selectors.ReleaseLife"""

    number = serializers.IntegerField(source="release.number")
    state = serializers.ChoiceField(ReleaseState.choices)
    kind = serializers.ChoiceField(ReleaseKind.choices, source="release.kind")
    versions = serializers.ListField(child=serializers.IntegerField(), source="release.versions")
    aliases = serializers.DictField(child=serializers.IntegerField(), source="release.aliases")
    traffic = serializers.DictField(
        child=serializers.FloatField(),
        source="release.traffic",
        help_text="Per cent of the requests by the version that answers them; {} where one answers all.",
    )
    rollout = serializers.CharField(source="release.rollout.name", default=None, allow_null=True)
    summary = serializers.CharField(source="release.summary")
    continues = serializers.IntegerField(
        source="release.continues.number",
        default=None,
        allow_null=True,
        help_text="The release of which this is only another text, the same for clients; null for a release.",
    )
    returns_to = serializers.IntegerField(source="release.returns_to.number", default=None, allow_null=True)
    error = serializers.CharField()
    created_by = serializers.CharField(source="release.created_by_name")
    created_at = serializers.DateTimeField(source="release.created_at")
    spans = SpanSerializer(many=True)


class ReleaseDetailSerializer(ReleaseSerializer):
    text = serializers.CharField(source="release.text")
    sha256 = serializers.CharField(source="release.sha256")
    steps = serializers.ListField(child=serializers.DictField(), source="check.steps", default=list)


class GoingBackSerializer(serializers.Serializer[Any]):
    """releases.going_back.GoingBack"""

    release = serializers.IntegerField(source="release.number")
    works = serializers.BooleanField()
    refusals = serializers.ListField(child=serializers.CharField())
    versions_now = serializers.ListField(child=serializers.IntegerField())
    versions_then = serializers.ListField(child=serializers.IntegerField())
    aliases_now = serializers.DictField(child=serializers.IntegerField())
    aliases_then = serializers.DictField(child=serializers.IntegerField())
    text = serializers.CharField(source="document.text")
    diff = serializers.CharField()
    effect = serializers.ChoiceField(["none", "in_place", "versions", "reload"])
    changes = serializers.SerializerMethodField(help_text="What changes for clients, in sentences.")
    refused = serializers.SerializerMethodField(
        help_text="Why requests that are answered now would be refused; empty if none would be."
    )
    callers = serializers.SerializerMethodField(help_text="The ensembles that call the model, with their faults.")

    def get_changes(self, found: GoingBack) -> list[str]:
        clients = for_clients_of_release(found.release.model, found.release)
        return clients.changes if clients is not None else []

    def get_refused(self, found: GoingBack) -> list[str]:
        clients = for_clients_of_release(found.release.model, found.release)
        return clients.refused if clients is not None else []

    @extend_schema_field(CallerSerializer(many=True))
    def get_callers(self, found: GoingBack) -> object:
        return CallerSerializer(callers_of_release(found.release.model, found.release), many=True).data


class AliasesSerializer(serializers.Serializer[Any]):
    aliases = serializers.DictField(child=serializers.IntegerField(min_value=1))
    release = serializers.IntegerField(help_text="The release that has these aliases; 0 for none.")


class AliasesRequestSerializer(serializers.Serializer[Any]):
    aliases = serializers.DictField(child=serializers.IntegerField(min_value=1), allow_empty=True)
    base_release = serializers.IntegerField(
        required=False, allow_null=True, default=None, help_text="The release whose aliases the caller has seen."
    )


class StretchSerializer(serializers.Serializer[Any]):
    """versions.compare.Stretch"""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(allow_null=True)


class TotalsSerializer(serializers.Serializer[Any]):
    """metrics.selectors.Totals"""

    requests = serializers.IntegerField()
    p50 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)
    error_share = serializers.FloatField(allow_null=True)


class ComparedFileSerializer(serializers.ModelSerializer[models.Version]):
    state = serializers.CharField()
    opset = serializers.IntegerField(source="details.opset", default=None, allow_null=True)

    class Meta:
        model = models.Version
        fields = ["number", "state", "format", "opset", "filename", "size_bytes", "sha256"]


class SideSerializer(serializers.Serializer[Any]):
    """versions.compare.Side"""

    key = serializers.CharField()
    kind = serializers.ChoiceField(["version", "release"])
    number = serializers.IntegerField()
    versions = serializers.ListField(child=serializers.IntegerField())
    state = serializers.CharField(source="life.state", default=None, allow_null=True, help_text="Of a release.")
    file = ComparedFileSerializer(source="version", allow_null=True)
    text = serializers.CharField()
    signature = serializers.DictField()
    live = StretchSerializer(many=True)
    golden = serializers.ListField(child=serializers.DictField())
    figures = TotalsSerializer(help_text="Of the last 24 hours; of a release, while it served.")


class ComparisonSerializer(serializers.Serializer[Any]):
    """versions.compare.Comparison"""

    a = SideSerializer()
    b = SideSerializer()
    changes = serializers.ListField(child=serializers.CharField())
    diff = serializers.CharField()

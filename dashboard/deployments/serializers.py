"""The shapes of deployments over REST."""

from rest_framework import serializers

from dashboard.models import Deployment, DeploymentServer


class DeploymentServerSerializer(serializers.ModelSerializer[DeploymentServer]):
    server = serializers.CharField(source="server.name")
    zone = serializers.CharField(source="server.zone")

    class Meta:
        model = DeploymentServer
        fields = ["server", "zone", "state", "error", "began_at", "ended_at"]


class DeploymentSerializer(serializers.ModelSerializer[Deployment]):
    environment = serializers.CharField(source="environment.name")
    model = serializers.CharField(source="model.name")
    release = serializers.IntegerField(source="release.number")
    earlier = serializers.IntegerField(source="earlier.number", default=None, allow_null=True)
    started_by = serializers.CharField(source="started_by_name")
    servers = DeploymentServerSerializer(source="steps", many=True)

    class Meta:
        model = Deployment
        fields = [
            *("id", "environment", "model", "release", "earlier", "at_once", "state", "error", "reason"),
            *("started_by", "started_at", "ended_at", "servers"),
        ]


class DeploymentRequestSerializer(serializers.Serializer[object]):
    model = serializers.CharField(max_length=200)
    release = serializers.IntegerField(min_value=1)
    at_once = serializers.IntegerField(required=False, default=1, help_text="The most servers that change at a time.")
    order = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        default=list,
        help_text="Servers that come first. The others follow by zone and name.",
    )
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=300)

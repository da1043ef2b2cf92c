"""The shapes of deployments over REST."""

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from dashboard.deployments.policies import Requirement
from dashboard.models import Deployment, DeploymentApproval, DeploymentPolicy, DeploymentServer

SHOWN = 100  # servers in the answer about one deployment


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

    class Meta:
        model = Deployment
        fields = [
            *("id", "environment", "model", "release", "earlier", "at_once", "state", "error", "reason"),
            *("started_by", "started_at", "ended_at"),
        ]


class DeploymentDetailSerializer(DeploymentSerializer):
    servers = serializers.SerializerMethodField(help_text=f"The first {SHOWN} in their order.")
    server_count = serializers.IntegerField(source="steps.count")

    class Meta(DeploymentSerializer.Meta):
        fields = [*DeploymentSerializer.Meta.fields, "servers", "server_count"]

    @extend_schema_field(DeploymentServerSerializer(many=True))
    def get_servers(self, deployment: Deployment) -> object:
        steps = deployment.steps.select_related("server")[:SHOWN]
        return DeploymentServerSerializer(steps, many=True).data


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
    leave_out = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        default=list,
        help_text="Servers that serve the earlier release until the deployment is over.",
    )
    reason = serializers.CharField(required=False, allow_blank=True, default="", max_length=300)


class LeaveOutSerializer(serializers.Serializer[object]):
    server = serializers.CharField(max_length=64)


class FreezeSerializer(serializers.Serializer[object]):
    days = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=6), max_length=7, help_text="0 for Monday."
    )
    start = serializers.CharField(max_length=5, help_text="As 16:00.")
    end = serializers.CharField(max_length=5, help_text="Later on the same day, 24:00 for its end.")


class PolicySerializer(serializers.ModelSerializer[DeploymentPolicy]):
    source = serializers.CharField(source="source.name", default=None, allow_null=True)  # type: ignore[assignment]
    freezes = FreezeSerializer(many=True)

    class Meta:
        model = DeploymentPolicy
        fields = ["source", "golden", "budget", "approval", "freezes", "time_zone"]


class PolicyRequestSerializer(serializers.Serializer[object]):
    source = serializers.CharField(  # type: ignore[assignment]
        required=False, allow_null=True, max_length=40, help_text="The environment in which a release must serve first."
    )
    golden = serializers.BooleanField(required=False, help_text="Golden requests must have passed.")
    budget = serializers.BooleanField(required=False, help_text="A measurement must keep the budget of the model.")
    approval = serializers.BooleanField(required=False, help_text="A second person must approve the release.")
    freezes = FreezeSerializer(many=True, required=False)
    time_zone = serializers.CharField(required=False, max_length=64, help_text="Of the freezes.")


class RequirementSerializer(serializers.Serializer[Requirement]):
    name = serializers.CharField()
    met = serializers.BooleanField()
    said = serializers.CharField()


class ApprovalSerializer(serializers.ModelSerializer[DeploymentApproval]):
    user = serializers.CharField(source="user.username")

    class Meta:
        model = DeploymentApproval
        fields = ["user", "comment", "at"]


class ApprovalRequestSerializer(serializers.Serializer[object]):
    comment = serializers.CharField(required=False, allow_blank=True, default="", max_length=300)

"""The shapes of environments, their servers and their wanted sets over REST. No shape has a control key."""

from rest_framework import serializers

from dashboard.fleet.checks import Check
from dashboard.fleet.selectors import ServerStanding
from dashboard.fleet.services import FILES, MOST_TOKEN, SETTINGS
from dashboard.metrics.server_loads import ServerLoad
from dashboard.models import ServerEnvironment, WantedRelease
from dashboard.servers.serializers import ServerSerializer

_SECRETS = ["has_control_key", "has_kubernetes_token"]


class EnvironmentSerializer(serializers.ModelSerializer[ServerEnvironment]):
    has_control_key = serializers.SerializerMethodField()
    has_kubernetes_token = serializers.SerializerMethodField()
    servers = serializers.SlugRelatedField[ServerEnvironment](slug_field="name", many=True, read_only=True)

    class Meta:
        model = ServerEnvironment
        fields = ["name", *SETTINGS, *FILES, *_SECRETS, "lookup_error", "servers"]

    def get_has_control_key(self, environment: ServerEnvironment) -> bool:
        return bool(environment.control_key)

    def get_has_kubernetes_token(self, environment: ServerEnvironment) -> bool:
        return bool(environment.kubernetes_token)


class EnvironmentChangeSerializer(serializers.Serializer[object]):
    driven = serializers.BooleanField(required=False, help_text="false: its servers are only observed.")
    everything = serializers.BooleanField(required=False, help_text="Whether every loaded model is wanted.")
    dns_name = serializers.CharField(required=False, allow_blank=True, max_length=253)
    http_port = serializers.IntegerField(required=False)
    grpc_port = serializers.IntegerField(required=False)
    metrics_port = serializers.IntegerField(required=False)
    tls = serializers.BooleanField(required=False, help_text="Whether servers that are found are called over TLS.")
    control_header = serializers.CharField(required=False, max_length=100)
    control_key = serializers.CharField(required=False, allow_blank=True, max_length=300, help_text="No answer has it.")
    ca_file = serializers.CharField(required=False, allow_blank=True, max_length=500)
    certificate = serializers.CharField(required=False, allow_blank=True, max_length=500)
    certificate_key = serializers.CharField(required=False, allow_blank=True, max_length=500)
    kubernetes_service = serializers.CharField(
        required=False, allow_blank=True, max_length=130, help_text="As namespace/name."
    )
    kubernetes_selector = serializers.CharField(
        required=False, allow_blank=True, max_length=300, help_text="As namespace/label=value."
    )
    kubernetes_address = serializers.CharField(required=False, allow_blank=True, max_length=300)
    kubernetes_token = serializers.CharField(
        required=False, allow_blank=True, max_length=MOST_TOKEN, help_text="No answer has it."
    )
    kubernetes_ca_file = serializers.CharField(required=False, allow_blank=True, max_length=500)
    replicas_min = serializers.IntegerField(required=False)
    replicas_max = serializers.IntegerField(required=False, help_text="0: nobody sets the replicas here.")


class EnvironmentRequestSerializer(EnvironmentChangeSerializer):
    name = serializers.CharField(max_length=40)


class AddressesSerializer(serializers.Serializer[object]):
    address = serializers.CharField(max_length=300, help_text="Scheme, host and port.")
    grpc = serializers.CharField(required=False, allow_blank=True, max_length=300)
    metrics = serializers.CharField(required=False, allow_blank=True, max_length=300)


class ZoneSerializer(serializers.Serializer[object]):
    zone = serializers.CharField(allow_blank=True, max_length=64)


class ServerCheckSerializer(AddressesSerializer):
    name = serializers.CharField(required=False, default="new", max_length=64)


class ServerRequestSerializer(AddressesSerializer):
    name = serializers.CharField(max_length=64)
    unchecked = serializers.BooleanField(required=False, default=False, help_text="Add it whatever its check says.")


class HoldingsSerializer(serializers.Serializer[object]):
    ours = serializers.IntegerField()
    others = serializers.IntegerField()
    lacks = serializers.IntegerField(help_text="Models that are wanted there, and that it does not have.")
    names_ours = serializers.ListField(child=serializers.CharField(), help_text="Some of them, as the next two.")
    names_others = serializers.ListField(child=serializers.CharField())
    names_lacks = serializers.ListField(child=serializers.CharField())


class CheckSerializer(serializers.Serializer[Check]):
    kind = serializers.CharField()
    version = serializers.CharField()
    problems = serializers.ListField(child=serializers.CharField())
    advice = serializers.ListField(child=serializers.CharField())
    holds = HoldingsSerializer(allow_null=True)
    said = serializers.CharField()


class LoadSerializer(serializers.Serializer[ServerLoad]):
    """What a server did in the last minute; null if it is not known."""

    rps = serializers.FloatField(allow_null=True, help_text="Requests a second.")
    p99 = serializers.FloatField(allow_null=True, help_text="In ms.")
    error_share = serializers.FloatField(allow_null=True)
    memory = serializers.IntegerField(allow_null=True, help_text="Resident bytes.")
    cpu = serializers.FloatField(allow_null=True, help_text="Cores.")
    skew = serializers.FloatField(
        allow_null=True, help_text="Its requests against the mean of the servers that answer: 1 is the mean."
    )


class StandingSerializer(serializers.Serializer[ServerStanding]):
    server = ServerSerializer()
    wanted = serializers.IntegerField()
    served = serializers.IntegerField()
    held = serializers.CharField()
    load = LoadSerializer()


class WantedSerializer(serializers.ModelSerializer[WantedRelease]):
    model = serializers.CharField(source="model.name")
    release = serializers.IntegerField(source="release.number", default=None, allow_null=True)

    class Meta:
        model = WantedRelease
        fields = ["model", "release"]


class WantedRequestSerializer(serializers.Serializer[object]):
    release = serializers.IntegerField(
        required=False, allow_null=True, min_value=1, help_text="null: always the newest."
    )

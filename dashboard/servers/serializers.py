"""The shapes of inference servers as JSON in the REST API. The rules are in services."""

from typing import Any

from rest_framework import serializers

from dashboard import models
from dashboard.servers.memory import Device, Fit, Holder, Part, Picture
from dashboard.servers.selectors import Running
from dashboard.servers.services import LOCAL
from dashboard.shared.heartbeat import ENGINES, PROCESSES


class ProcessSerializer(serializers.Serializer[Running]):
    name = serializers.ChoiceField(source="process.name", choices=sorted(PROCESSES.keys() - {*ENGINES}))
    host = serializers.CharField(source="process.host", help_text="The name of its machine.")
    pid = serializers.IntegerField(source="process.pid", help_text="Its number on its machine.")
    since = serializers.DateTimeField(source="process.started_at")
    age = serializers.FloatField(
        source="process.age", help_text="Seconds since its last heartbeat, as far as the answering machine knows."
    )
    silent = serializers.BooleanField(source="process.silent")
    leads = serializers.BooleanField(
        allow_null=True, help_text="Whether it leads the watchers; null if it is no watcher."
    )
    lease_number = serializers.IntegerField(
        allow_null=True, help_text="Of the watcher that leads: the number that its control calls carry."
    )
    leads_since = serializers.DateTimeField(allow_null=True)


class ServerStateSerializer(serializers.ModelSerializer[models.ServerState]):
    class Meta:
        model = models.ServerState
        fields = ["state", "pid", "started_at", "restarts", "last_reason", "checked_at", "info"]


class ModelStateSerializer(serializers.ModelSerializer[models.ModelState]):
    model = serializers.CharField(source="model_name")

    class Meta:
        model = models.ModelState
        fields = ["model", "version", "state", "reason", "updated_at"]


class ServerSerializer(serializers.ModelSerializer[models.Server]):
    environment = serializers.CharField(source="environment.name", default="production")
    state = ServerStateSerializer(default=None, allow_null=True)
    model_count = serializers.IntegerField(
        source="model_states.count",
        read_only=True,
        help_text="The number of versions on the server; `/servers/<name>/models` lists them.",
    )

    class Meta:
        model = models.Server
        fields = [
            "name",
            "http_url",
            "grpc_url",
            "metrics_url",
            "bundled",
            "environment",
            "zone",
            "state",
            "model_count",
        ]


class AskedServerSerializer(serializers.Serializer[Any]):
    """The server that gets requests of the dashboard."""

    server = serializers.CharField(
        required=False, allow_blank=True, default="", max_length=64, help_text=f"Its name; by default {LOCAL}."
    )


class EventSerializer(serializers.ModelSerializer[models.ServerEvent]):
    class Meta:
        model = models.ServerEvent
        fields = ["at", "kind", "model_name", "message"]


class PartSerializer(serializers.Serializer[Part]):
    instances = serializers.ListField(child=serializers.CharField(), help_text="Several share the bytes.")
    bytes = serializers.IntegerField()


class HolderSerializer(serializers.Serializer[Holder]):
    model = serializers.CharField()
    version = serializers.IntegerField()
    bytes = serializers.IntegerField()
    basis = serializers.ChoiceField(["measured", "growth", "files"])
    parts = PartSerializer(many=True)
    evictable = serializers.BooleanField()
    kept_by = serializers.CharField(help_text="pinned, requests or loading; empty if evictable.")
    last_request = serializers.DateTimeField(allow_null=True)


class DeviceSerializer(serializers.Serializer[Device]):
    device = serializers.CharField(help_text="host, gpu:0, ...")
    where = serializers.CharField()
    total = serializers.IntegerField(help_text="others + server + available.")
    others = serializers.IntegerField()
    server = serializers.IntegerField(help_text="itself + the bytes of all versions.")
    itself = serializers.IntegerField()
    available = serializers.IntegerField()
    evictable = serializers.IntegerField()
    measured = serializers.BooleanField(help_text="false: server is the sum of the estimates.")
    budget = serializers.IntegerField(help_text="0 for none.")
    budget_kept = serializers.IntegerField()
    budget_evictable = serializers.IntegerField()
    holders = HolderSerializer(many=True)


class FitSerializer(serializers.Serializer[Fit]):
    model = serializers.CharField()
    versions = serializers.ListField(child=serializers.IntegerField())
    needs = serializers.DictField(child=serializers.IntegerField())
    basis = serializers.ChoiceField(["last_load", "files", "unknown"])
    answer = serializers.ChoiceField(["yes", "after_eviction", "no", "unknown"])
    device = serializers.CharField(help_text="The scarcest device.")
    left = serializers.IntegerField(allow_null=True, help_text="Below 0 so many bytes are missing.")
    evicts = serializers.IntegerField()
    over_budget = serializers.IntegerField()


class MemorySerializer(serializers.Serializer[Picture]):
    devices = DeviceSerializer(many=True)
    fits = FitSerializer(many=True)

"""The shapes of pods and replicas over REST."""

from rest_framework import serializers

from dashboard.kubernetes.events import KINDS
from dashboard.models import ReplicaCount, ReplicaEvent


class PodSerializer(serializers.Serializer[object]):
    name = serializers.CharField(source="pod.name")
    server = serializers.CharField(help_text="Empty: it has no address yet, or has ended.")
    address = serializers.CharField(source="pod.address")
    node = serializers.CharField(source="pod.node", help_text="Empty: no node has taken it yet.")
    zone = serializers.CharField(source="pod.zone")
    state = serializers.CharField(source="pod.label")
    ready = serializers.BooleanField(source="pod.ready")
    restarts = serializers.IntegerField(source="pod.restarts", help_text="Of all its containers.")
    since = serializers.CharField(source="pod.since")
    said = serializers.CharField(source="pod.said", help_text="Why it is not ready or was restarted, and what to do.")


class WorkloadSerializer(serializers.Serializer[object]):
    kind = serializers.CharField()
    name = serializers.CharField()
    wanted = serializers.IntegerField(allow_null=True)
    ready = serializers.IntegerField(allow_null=True)
    by = serializers.CharField(help_text="The program that set its replicas last.")
    owner = serializers.CharField(help_text="The object that made it.")
    trouble = serializers.CharField()


class AutoscalerSerializer(serializers.Serializer[object]):
    kind = serializers.CharField()
    name = serializers.CharField()
    target = serializers.CharField()
    min = serializers.IntegerField()
    max = serializers.IntegerField()
    said = serializers.CharField(help_text="What limits it or keeps it from scaling.")


class ReplicasSerializer(serializers.Serializer[object]):
    wanted = serializers.IntegerField(allow_null=True)
    ready = serializers.IntegerField(allow_null=True)
    looked_at = serializers.DateTimeField(allow_null=True, help_text="Of when this is. Null: nobody could look yet.")
    workloads = WorkloadSerializer(many=True)
    autoscalers = AutoscalerSerializer(many=True)
    trouble = serializers.ListField(
        child=serializers.CharField(), help_text="Why the cluster could not be looked at, or not at all of it."
    )
    least = serializers.IntegerField()
    most = serializers.IntegerField(help_text="0: nobody sets the replicas here.")
    refusal = serializers.CharField(help_text="Why they cannot be set here; empty if they can.")


class ReplicasRequestSerializer(serializers.Serializer[object]):
    replicas = serializers.IntegerField(min_value=0, max_value=100_000)
    seen = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        help_text="The number that you saw: another one is not overwritten.",
    )


class ReplicaCountSerializer(serializers.ModelSerializer[ReplicaCount]):
    class Meta:
        model = ReplicaCount
        fields = ["at", "wanted", "ready"]


class ReplicaEventSerializer(serializers.ModelSerializer[ReplicaEvent]):
    kind = serializers.ChoiceField(choices=list(KINDS.items()))

    class Meta:
        model = ReplicaEvent
        fields = ["at", "kind", "reason", "about", "said", "bad"]

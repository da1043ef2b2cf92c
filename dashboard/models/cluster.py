"""What `watch` saw of an environment in its Kubernetes cluster: pods, what makes them, and why their number changed."""

from typing import Any

from django.db import models
from django.utils import timezone

from dashboard.models.environment import ServerEnvironment


class ClusterLook(models.Model):
    """The newest look at the cluster. pods, workloads, autoscalers: rows of kubernetes.pods and kubernetes.workloads.

    trouble: sentences about what could not be read. looked_at: when the environment was made, if no look has succeeded yet.
    """

    environment = models.OneToOneField(
        ServerEnvironment, on_delete=models.CASCADE, related_name="look", primary_key=True
    )
    looked_at = models.DateTimeField(default=timezone.now)
    pods: "models.JSONField[list[Any], list[Any]]" = models.JSONField(default=list)
    workloads: "models.JSONField[list[Any], list[Any]]" = models.JSONField(default=list)
    autoscalers: "models.JSONField[list[Any], list[Any]]" = models.JSONField(default=list)
    trouble: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"{self.environment}: {len(self.pods)} pods"


class ReplicaCount(models.Model):
    """The number of replicas from a moment on, until the next row. wanted: by the cluster's objects."""

    environment = models.ForeignKey(ServerEnvironment, on_delete=models.CASCADE, related_name="replica_counts")
    at = models.DateTimeField()
    wanted = models.PositiveIntegerField()
    ready = models.PositiveIntegerField()

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["environment", "-at"])]

    def __str__(self) -> str:
        return f"{self.environment}: {self.ready} of {self.wanted}"


class ReplicaEvent(models.Model):
    """Something that changed the number of replicas, or kept it from changing.

    uid: of the event in the cluster, so that one is kept once. kind: who did it, a key of kubernetes.events.KINDS. about: the
    object, as "Deployment triton".
    """

    environment = models.ForeignKey(ServerEnvironment, on_delete=models.CASCADE, related_name="replica_events")
    uid = models.CharField(max_length=100)
    at = models.DateTimeField()
    kind = models.CharField(max_length=16)
    reason = models.CharField(max_length=64, blank=True, default="")
    about = models.CharField(max_length=300, blank=True, default="")
    said = models.CharField(max_length=500)
    bad = models.BooleanField(default=False)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["environment", "-at"])]
        constraints = [models.UniqueConstraint(fields=["environment", "uid"], name="replica_event_once")]

    def __str__(self) -> str:
        return f"{self.environment} {self.kind}: {self.said}"

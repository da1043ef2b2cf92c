"""A model, the texts its configuration had, and which versions were served when."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.shared.choices import DesiredState
from repository.files.drift import Fingerprint


class Model(models.Model):
    """A folder of the managed repository. config.pbtxt lies on disk; ConfigRevision holds the adopted texts."""

    name = models.CharField(max_length=200, unique=True)
    description = models.TextField(blank=True, default="")
    tags: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list, blank=True)
    desired_state = models.CharField(
        max_length=16, choices=DesiredState.choices, default=DesiredState.UNLOADED, db_index=True
    )
    # Grows with everything that a server has to be told: publish, configuration, load, unload. See ModelSync.
    generation = models.PositiveBigIntegerField(default=0)
    # The highest version number ever given, so that none is used twice.
    last_number = models.PositiveBigIntegerField(default=0)
    # What the folder held when it was last adopted ({} before that), and what was changed by hand since, in sentences.
    fingerprint: "models.JSONField[Fingerprint, Fingerprint]" = models.JSONField(default=dict)
    drift: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        permissions = [
            ("operate", "Load, unload, make live, configure"),
            ("upload_data", "Upload formats that are data (ONNX)"),
            ("upload_code", "Upload formats that can run code (TorchScript, .pt2, Python, TensorRT plans, .mar)"),
        ]

    def __str__(self) -> str:
        return self.name


class ConfigRevision(models.Model):
    """One adopted text of config.pbtxt; the highest number is the current one."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    text = models.TextField()
    sha256 = models.CharField(max_length=64)
    summary = models.CharField(max_length=300, blank=True, default="")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="revision_number_once")]

    def __str__(self) -> str:
        return f"{self.model} configuration {self.number}"


class Release(models.Model):
    """From this moment on the model served these versions; empty when it was unloaded."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="releases")
    versions: "models.JSONField[list[int], list[int]]" = models.JSONField(default=list)
    reason = models.CharField(max_length=300, blank=True, default="")
    actor_name = models.CharField(max_length=150, blank=True, default="")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["model", "-at"])]

    def __str__(self) -> str:
        return f"{self.model}: versions {self.versions}"

"""One published version: immutable files and what is known of them."""

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.models.upload import Upload
from dashboard.shared.choices import VersionState


class Version(models.Model):
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveBigIntegerField()
    format = models.CharField(max_length=32)
    filename = models.CharField(max_length=255, blank=True, default="")
    size_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    # {"inputs": [{"name", "datatype", "shape"}], "outputs": [...]}
    signature = models.JSONField(default=dict)
    # What inspection found beyond the signature: opset, producer, warnings.
    details = models.JSONField(default=dict)
    note = models.TextField(blank=True, default="")
    state = models.CharField(max_length=16, choices=VersionState.choices, default=VersionState.PUBLISHED)
    upload = models.ForeignKey(Upload, null=True, on_delete=models.SET_NULL, related_name="versions")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="version_number_once")]

    def __str__(self) -> str:
        return f"{self.model} version {self.number}"

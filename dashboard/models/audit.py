"""Audit entries: actor, action, time and changed fields."""

from collections.abc import Mapping

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model


class AuditEntry(models.Model):
    """`actor` is null for the system itself. Names are stored because an entry outlives its actor and model."""

    at = models.DateTimeField(default=timezone.now, db_index=True)
    actor = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=150)
    action = models.CharField(max_length=40, db_index=True)  # "version.publish", "model.load", ...
    model = models.ForeignKey(Model, null=True, on_delete=models.SET_NULL, related_name="audit_entries")
    model_name = models.CharField(max_length=200, blank=True, default="", db_index=True)
    summary = models.CharField(max_length=500)
    before: "models.JSONField[Mapping[str, object], dict[str, object]]" = models.JSONField(default=dict)
    after: "models.JSONField[Mapping[str, object], dict[str, object]]" = models.JSONField(default=dict)
    # Whether this is part of a larger act, such as an import, which has its own entry.
    part = models.BooleanField(default=False)

    class Meta:
        ordering = ["-at", "-id"]

    def __str__(self) -> str:
        return f"{self.actor_name}: {self.summary}"

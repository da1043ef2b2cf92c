"""Long work, with its progress, log and outcome."""

from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.shared.choices import JobState


class JobParams(TypedDict, total=False):
    """What a kind of work begins with: the id of its row."""

    upload: str
    version: int
    store: "StoreParams"


class StoreParams(TypedDict, total=False):
    """Of a job that takes over a model store: where it lies, and what was said with it (uploads.imports)."""

    folder: str  # with config.properties, and the store where that names none
    model_store: str
    config: str  # the file's path, where it does not lie in `folder`
    models: list[str]  # what is registered at start: "all", or [name=]archive, in place of load_models and the snapshot
    snapshots: bool  # whether the last snapshot has a say
    uploads: list[str]  # archives that were uploaded, in place of a folder
    names: dict[str, str]  # their own, by the upload: one that is taken over lies in its version by another
    properties: str  # the text of config.properties that came with them
    system: bool  # asked by a command, on behalf of nobody
    load: bool  # whether who asked may have models served


class Job(models.Model):
    """One piece of long work. `result` is JSON that the work returns, or {"status": HTTP status} of its error.

    `attempt` is a fencing token: a worker that was taken for lost, and lives, holds an older one and may not write.
    """

    kind = models.CharField(max_length=32)
    title = models.CharField(max_length=200, blank=True, default="")
    state = models.CharField(max_length=16, choices=JobState.choices, default=JobState.QUEUED, db_index=True)
    progress = models.PositiveSmallIntegerField(default=0)  # percent
    step = models.CharField(max_length=200, blank=True, default="")
    log = models.TextField(blank=True, default="")
    error = models.TextField(blank=True, default="")
    params: "models.JSONField[JobParams, JobParams]" = models.JSONField(default=dict)
    result: "models.JSONField[dict[str, object], dict[str, object]]" = models.JSONField(default=dict)
    model = models.ForeignKey(Model, null=True, on_delete=models.SET_NULL, related_name="jobs")
    attempt = models.PositiveSmallIntegerField(default=0)
    cancel_requested = models.BooleanField(default=False)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    queued_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-id"]

    def __str__(self) -> str:
        return f"job {self.pk}: {self.title or self.kind} ({self.state})"

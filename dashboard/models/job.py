"""Long work, with its progress, log and outcome."""

from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.shared.choices import JobState


class JobParams(TypedDict, total=False):
    """The parameters of a job: mostly the id of a row."""

    upload: str
    version: int
    measurement: int
    tuning: int
    override: str
    batch: str
    monitor: int
    replay: int
    model: int
    release: int
    address: str
    store: "StoreParams"


class StoreParams(TypedDict, total=False):
    """The parameters of a job that imports a model store (imports.services): its folder or uploads, and its options."""

    folder: str  # holds config.properties, and the store if config.properties names none
    model_store: str
    config: str  # the path of config.properties, if it is not in `folder`
    models: list[str]  # archives to register: "all" or [name=]archive, in place of load_models and the snapshot
    snapshots: bool  # whether the models of the last snapshot are registered
    uploads: list[str]  # uploaded archives, in place of a folder
    names: dict[str, str]  # upload -> its original filename, because imported archives are renamed
    properties: str  # the text of an uploaded config.properties
    system: bool  # whether a command started the import, without a person
    load: bool  # whether the person who asked may load models


class Job(models.Model):
    """One piece of long work. result: the JSON that the work returns, or an object with the HTTP `status` of its error.

    to_send: whether no queue has taken the job yet.
    worker: the key of the process that runs the job (shared.heartbeat); "" if it gives no heartbeats.
    attempt: a fencing token; a worker that was wrongly taken for dead holds an older attempt and may not write.
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
    worker = models.CharField(max_length=300, default="", db_default="")
    to_send = models.BooleanField(default=False, db_default=False)
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

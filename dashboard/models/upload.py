"""Uploads; their bytes stay in data/staging/<id>/ until they are published."""

import uuid
from pathlib import Path

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.upload_json import Contents, Conversion, Publication
from dashboard.shared.choices import UploadState


class Upload(models.Model):
    """An upload. Only uploads.states writes `state`. Its docstring lists the data on disk and in the rows for each state."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="uploads")
    user_name = models.CharField(max_length=150, blank=True, default="")
    model_name = models.CharField(max_length=200)
    state = models.CharField(max_length=16, choices=UploadState.choices, default=UploadState.RECEIVING, db_index=True)
    error = models.TextField(blank=True, default="")
    # JSON of upload_json: a Proposal, Contents, a Conversion, and a Publication, which `last_publication` reads.
    proposal = models.JSONField(default=dict)
    contents: "models.JSONField[Contents, Contents]" = models.JSONField(default=dict)
    conversion: "models.JSONField[Conversion, Conversion]" = models.JSONField(default=dict)
    publication = models.JSONField(default=dict)
    source = models.JSONField(
        default=dict
    )  # {"kind": name, ...}: the source of the files, no secrets; {} for the browser
    allow_code = models.BooleanField(default=False)  # the person has the right to upload formats that can run code
    job = models.ForeignKey("Job", null=True, on_delete=models.SET_NULL, related_name="uploads")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.model_name} ({self.state})"

    @property
    def folder(self) -> Path:
        return Path(settings.STAGING_DIR) / str(self.id)

    @property
    def is_fetched(self) -> bool:
        """Whether a job copies the files from a source, or did so last."""
        return bool(self.source) and self.job is not None and self.job.kind == "fetch"

    @property
    def last_publication(self) -> Publication | None:
        """The last request to publish. It has everything that is needed to finish it after a crash, or to repeat it."""
        return Publication.from_json(self.publication)

    # Annotations of uploads.selectors.uploads_open, for lists.
    file_count: int
    announced_bytes: int | None
    arrived_bytes: int | None

    @property
    def size_bytes(self) -> int:
        if "announced_bytes" in self.__dict__:
            return self.announced_bytes or 0
        return sum(file.size for file in self.files.all())

    @property
    def received_bytes(self) -> int:
        if "arrived_bytes" in self.__dict__:
            return self.arrived_bytes or 0
        return sum(file.received for file in self.files.all())


class UploadFile(models.Model):
    """One file of an upload. On disk its name is its number, and `path` is the name that the client gave."""

    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="files")
    number = models.PositiveIntegerField()
    path = models.CharField(max_length=500)
    size = models.PositiveBigIntegerField()
    received = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(
        max_length=64, blank=True, default=""
    )  # the hash from the client, or of the bytes that were fetched; checked when the file is complete
    # How a fetched file's source tells that the content has changed; "" if it does not.
    token = models.CharField(max_length=200, blank=True, default="")

    class Meta:
        ordering = ["number"]
        constraints = [models.UniqueConstraint(fields=["upload", "number"], name="upload_file_number_once")]

    def __str__(self) -> str:
        return f"{self.path} of upload {self.upload_id}"

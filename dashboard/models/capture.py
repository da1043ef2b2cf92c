"""Captures: what the inference server keeps of clients' requests, in the folder of each capture."""

import uuid
from pathlib import Path

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from repository.core.captures import Counts, Wanted, read_counts
from repository.core.errors import CaptureUnusable


class Capture(models.Model):
    """One capture. Its folder, settings.CAPTURE_DIR/<id>, is described in repository.core.captures.

    wanted: as in its file capture.json. ends_at: when the server stops at the latest. keep_until: when it is deleted.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="captures")
    wanted: "models.JSONField[Wanted, Wanted]" = models.JSONField()
    ends_at = models.DateTimeField()
    keep_until = models.DateTimeField(db_index=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"capture {self.pk} of {self.model}"

    @property
    def folder(self) -> Path:
        return Path(settings.CAPTURE_DIR) / str(self.pk)

    @property
    def counts(self) -> Counts | None:
        """What became of the requests so far, as the server tells it; None before it has begun. Zeros with a `trouble` if the
        folder cannot be read."""
        try:
            return read_counts(self.folder)
        except CaptureUnusable as error:
            return Counts(
                chosen=0, written=0, waiting=0, dropped={}, lost=0, bytes=0, trouble=error.message, ended="", at=0.0
            )

    @property
    def running(self) -> bool:
        """Whether the server keeps requests, or will when it has noticed the capture."""
        counts = self.counts
        return not self.wanted["stopped"] and self.ends_at > timezone.now() and (counts is None or not counts["ended"])

    @property
    def unkept(self) -> int:
        """How many chosen requests were dropped, or lost with a killed server."""
        counts = self.counts
        return 0 if counts is None else sum(counts["dropped"].values()) + counts["lost"]

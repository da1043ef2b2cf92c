"""Data drift: monitors of models, the windows of requests that they compared, and pictures of those."""

from typing import TypedDict

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models
from django.utils import timezone

from dashboard.models.capture import Capture
from dashboard.models.job import Job
from dashboard.models.model import Model
from dashboard.shared.choices import JobState


class ColumnDrift(TypedDict):
    """One column of a window beside the reference. p: of the test. adjusted_p: corrected for the number of columns."""

    name: str
    kind: str
    test: str
    statistic: float
    p: float
    adjusted_p: float
    score_name: str
    score: float
    drifted: bool


class Distribution(TypedDict):
    """The shares (0 to 1) of a column's values in bins or categories; they are data of clients, as their labels are."""

    labels: list[str]
    reference: list[float]
    current: list[float]


class DriftMonitor(models.Model):
    """Compares windows of captured requests of a model with a reference.

    reference: the capture whose requests are the reference; None after it was deleted, and then the monitor rests.
    days: of the reference's requests, those of its first days; 0 for all. version: only requests that it answered; 0 for any.
    window: requests. windows: how many were compared, over which `alpha` is spread. position: capture -> the number of the last
    request that is not read again. drifted_since: when the first window ended of those that drifted in a row up to now.
    note: a sentence about the last check, if it failed.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="drift_monitors")
    reference = models.ForeignKey(Capture, null=True, on_delete=models.SET_NULL, related_name="+")
    days = models.FloatField(default=0)
    version = models.PositiveBigIntegerField(default=0)
    window = models.PositiveIntegerField()
    alpha = models.FloatField()
    threshold = models.FloatField()
    windows = models.PositiveIntegerField(default=0)
    position: "models.JSONField[dict[str, int], dict[str, int]]" = models.JSONField(default=dict)
    drifted_since = models.DateTimeField(null=True)
    note = models.TextField(blank=True, default="")
    checked_at = models.DateTimeField(null=True)
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"drift monitor {self.pk} of {self.model.name}"

    @property
    def under_way(self) -> bool:
        return self.job is not None and self.job.state in (JobState.QUEUED, JobState.RUNNING)

    @property
    def state(self) -> str:
        """The state of the last window: "drifted", "clean", "waiting" for a first one, or "rests" without a reference."""
        if self.reference_id is None:
            return "rests"
        if not self.windows:
            return "waiting"
        return "clean" if self.drifted_since is None else "drifted"


class DriftWindow(models.Model):
    """One window beside the reference. level: its part of the monitor's alpha. columns: the worst first, at most a number of
    them. compared, drifted: the numbers of all columns."""

    monitor = models.ForeignKey(DriftMonitor, on_delete=models.CASCADE, related_name="compared_windows")
    number = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    capture = models.ForeignKey(Capture, null=True, on_delete=models.SET_NULL, related_name="+")
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    requests = models.PositiveIntegerField()
    reference_requests = models.PositiveIntegerField()
    level = models.FloatField()
    compared = models.PositiveIntegerField()
    drifted = models.PositiveIntegerField()
    columns: "models.JSONField[list[ColumnDrift], list[ColumnDrift]]" = models.JSONField(default=list)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["monitor", "number"], name="drift_window_number_once")]

    def __str__(self) -> str:
        return f"window {self.number} of {self.monitor}"

    @property
    def share(self) -> float:
        """The share of drifted columns."""
        return self.drifted / self.compared if self.compared else 0.0


class DriftPicture(models.Model):
    """The distributions of a window's worst columns, in their order. They hold values of clients, so they are deleted with the
    capture of the window, and with that of the reference."""

    window = models.OneToOneField(DriftWindow, on_delete=models.CASCADE, related_name="picture")
    capture = models.ForeignKey(Capture, on_delete=models.CASCADE, related_name="+")
    reference = models.ForeignKey(Capture, on_delete=models.CASCADE, related_name="+")
    distributions: "models.JSONField[list[Distribution], list[Distribution]]" = models.JSONField(default=list)

    def __str__(self) -> str:
        return f"picture of {self.window}"

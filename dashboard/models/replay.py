"""Replays: captured requests that were sent to a version again, and what their answers differ in."""

from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.capture import Capture
from dashboard.models.job import Job
from dashboard.models.measurement import OwnServer
from dashboard.models.version import Version
from dashboard.shared.choices import MeasurementState
from repository.core.json_types import JsonObject


class OutputFigures(TypedDict):
    """How much one output differs. bins: requests whose output is equal, within the tolerance, up to 10 and up to 100 times it,
    more, and not to be compared. top1: rows whose first class was compared, and agreed."""

    compared: int
    differ: int
    max_absolute: float
    max_relative: float
    top1: list[int]
    bins: list[int]


class FailureReason(TypedDict):
    """Requests that failed for one reason. first: the number of the first one."""

    requests: int
    first: int


class ReplayFigures(TypedDict):
    """Sums over the requests that a replay has counted.

    compared: requests that were answered both times, with an output to compare. differ: those with an output beyond the
    tolerance. failed: requests that were answered when they were captured, and failed now; reasons: why. failed_before:
    requests that failed when they were captured; mended: those of them that were answered now. captured, replayed: the
    latencies in the server, by the bucket of repository.core.histogram, of the answered requests.
    """

    compared: int
    differ: int
    failed: int
    failed_before: int
    mended: int
    reasons: dict[str, FailureReason]
    outputs: dict[str, OutputFigures]
    captured: dict[str, int]
    replayed: dict[str, int]


def no_figures() -> ReplayFigures:
    return ReplayFigures(
        compared=0, differ=0, failed=0, failed_before=0, mended=0, reasons={}, outputs={}, captured={}, replayed={}
    )


class Replay(models.Model):
    """One replay of a capture against a version.

    requests: of the capture. done: how many are counted. position: the number of the last one that is; each window of
    requests is counted in the transaction that moves it. unlike: masked outputs, which are not compared. config, sha256: what
    served, as of a measurement. note: a sentence about the end of a replay that is not done.
    """

    capture = models.ForeignKey(Capture, on_delete=models.CASCADE, related_name="replays")
    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="replays")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=16, choices=MeasurementState.choices, default=MeasurementState.WAITING)
    note = models.TextField(blank=True, default="")
    config = models.TextField(blank=True, default="")
    sha256 = models.CharField(max_length=64, blank=True, default="")
    absolute = models.FloatField()
    relative = models.FloatField()
    clients = models.PositiveIntegerField()
    server: "models.JSONField[OwnServer, OwnServer]" = models.JSONField(default=dict)
    requests = models.PositiveBigIntegerField(default=0)
    done = models.PositiveBigIntegerField(default=0)
    position = models.PositiveBigIntegerField(default=0)
    progress_attempt = models.PositiveIntegerField(default=0)
    unlike: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)
    figures: "models.JSONField[ReplayFigures, ReplayFigures]" = models.JSONField(default=no_figures)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"replay {self.pk} of {self.capture}"

    @property
    def under_way(self) -> bool:
        return self.state in (MeasurementState.WAITING, MeasurementState.RUNNING)

    @property
    def differ_share(self) -> float | None:
        """The share of the compared requests that differ; None if none was compared."""
        return self.figures["differ"] / self.figures["compared"] if self.figures["compared"] else None


class ReplayDifference(models.Model):
    """One of the requests that differ most. number: of the captured request, which stays in the files of the capture.

    score: in multiples of the tolerance. outputs: the answer to the replay, as the JSON of repository.core.tensors; [] if it is
    too large. It is data of clients, and is deleted with the capture.
    """

    replay = models.ForeignKey(Replay, on_delete=models.CASCADE, related_name="differences")
    number = models.PositiveBigIntegerField()
    score = models.FloatField()
    max_absolute = models.FloatField()
    detail = models.TextField(blank=True, default="")
    outputs: "models.JSONField[list[JsonObject], list[JsonObject]]" = models.JSONField(default=list)

    class Meta:
        ordering = ["-score", "-max_absolute", "number"]
        constraints = [models.UniqueConstraint(fields=["replay", "number"], name="replay_difference_once")]

    def __str__(self) -> str:
        return f"request {self.number} of {self.replay}"

"""A tuning: a search for a better configuration of one version, with its trials."""

from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.job import Job
from dashboard.models.measurement import Figure, LoadFigures, OwnServer
from dashboard.models.version import Version
from dashboard.shared.choices import MeasurementState


class TuningPlan(TypedDict):
    """The plan of a tuning; tuning.plan has the defaults and limits.

    goal: "throughput" (most requests a second, with the p99 under p99_ms), "latency" (least p99 at per_second) or "memory"
    (least memory at both). clients: of a closed loop, which measures the throughput. The next fields are those of a
    measurement, for each trial. rounds: of the final comparison. most_batch: rows. most_trials: of the search.
    most_minutes: the time for all trials.
    """

    goal: str
    p99_ms: float
    per_second: float
    clients: int
    encoding: str
    inputs: str
    rows: int
    warmup_s: float
    window_s: float
    least_windows: int
    most_windows: int
    variation: float
    rounds: int
    most_instances: int
    most_batch: int
    most_threads: int
    most_trials: int
    most_minutes: float


class Trial(TypedDict):
    """One trial. setting: axis -> value. state: "done"; "ended", because the trial was clearly worse than the best one; or
    "failed", with the reason in `note`. round: 0 for a trial of the search, 1 or more for a round of the final comparison.
    figures: None for a failed trial. seconds: the duration."""

    setting: dict[str, str]
    state: str
    note: str
    round: int
    figures: LoadFigures | None
    fits: bool
    seconds: float


class Gain(TypedDict):
    """The result of the final comparison. before, after: the figure of the goal. change: relative; spread: half of its 95 %
    confidence interval, None if unknown. better: whether the gain is
    beyond the spread."""

    before: Figure
    after: Figure
    change: float
    spread: float | None
    better: bool


class Tuning(models.Model):
    """config: the present configuration at the start. steps: of an ensemble, the configurations of the models that it calls.
    axes: name -> values. chosen: the best setting, {} before the search has ended. applied: the act that applied it, with its
    upload, version, rollout or release; {} for none. note: a sentence about the end."""

    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="tunings")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=16, choices=MeasurementState.choices, default=MeasurementState.WAITING)
    note = models.TextField(blank=True, default="")
    release = models.PositiveIntegerField(default=0)
    config = models.TextField(blank=True, default="")
    steps: "models.JSONField[dict[str, str], dict[str, str]]" = models.JSONField(default=dict)
    plan: "models.JSONField[TuningPlan, TuningPlan]" = models.JSONField()
    axes: "models.JSONField[dict[str, list[str]], dict[str, list[str]]]" = models.JSONField(default=dict)
    present: "models.JSONField[dict[str, str], dict[str, str]]" = models.JSONField(default=dict)
    machine: "models.JSONField[dict[str, object], dict[str, object]]" = models.JSONField(default=dict)
    server: "models.JSONField[OwnServer, OwnServer]" = models.JSONField(default=dict)
    trials: "models.JSONField[list[Trial], list[Trial]]" = models.JSONField(default=list)
    chosen: "models.JSONField[dict[str, str], dict[str, str]]" = models.JSONField(default=dict)
    gain: "models.JSONField[Gain | None, Gain | None]" = models.JSONField(null=True)
    applied: "models.JSONField[dict[str, object], dict[str, object]]" = models.JSONField(default=dict)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"tuning {self.pk} of {self.version}"

    @property
    def under_way(self) -> bool:
        return self.state in (MeasurementState.WAITING, MeasurementState.RUNNING)

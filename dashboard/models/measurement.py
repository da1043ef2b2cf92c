"""A measurement: a benchmark of one version, with the figures of each load and their spread."""

from collections.abc import Callable
from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.job import Job
from dashboard.models.version import Version
from dashboard.shared.choices import MeasurementState


class MeasurementPlan(TypedDict):
    """The plan of a measurement; measurements.plan has the defaults and limits.

    where: "own" (a server that the job starts for the version alone) or "running" (the bundled server). loads: numbers of
    clients in a closed loop, requests a second in an open loop. rows: the first dimension of generated inputs. variation: the
    coefficient of variation of a stable load. The last three bound what a measurement may take from clients of the running
    server: its CPU share (0 to 1), the growth of the p99 (0.5: by half), and its waiting requests.
    """

    where: str
    loop: str
    loads: list[float]
    encoding: str
    inputs: str
    rows: int
    warmup_s: float
    window_s: float
    least_windows: int
    most_windows: int
    variation: float
    most_cpu: float
    most_p99_growth: float
    most_pending: int


def load_in_words(plan: MeasurementPlan, load: float) -> str:
    """Return a load in words: "4 clients" or "200/s"."""
    if plan["loop"] == "open":
        return f"{load:g}/s"
    return "1 client" if load == 1 else f"{load:g} clients"


class Figure(TypedDict):
    """A mean over windows. spread: half of its 95 % confidence interval, None for fewer than two windows."""

    value: float
    spread: float | None


def with_spread(figure: Figure, words: Callable[[float], str]) -> str:
    """Return a figure in words: "1.24 ms ± 80 µs"."""
    value, spread = figure["value"], figure["spread"]
    return words(value) if spread is None else f"{words(value)} ± {words(spread)}"


class BatchTimes(TypedDict):
    """The executions with one batch size, and their mean times in ms."""

    size: int
    executions: int
    input: float
    compute: float
    output: float


class LoadFigures(TypedDict):
    """The figures of one load. Latencies are in ms, as the client measures them.

    variation: of the last windows, None for fewer than three. split: the parts of the mean latency in ms: queue, input,
    compute, output, other (the rest of the server's time) and wire (the client's time without the server's). energy_j: joules
    of the GPUs for each request. cpu_cores, memory_bytes, energy_j: None if unknown.
    """

    load: float
    windows: int
    stable: bool
    variation: float | None
    warmup: dict[str, float | None]
    per_second: Figure
    mean_ms: Figure | None
    p50_ms: Figure | None
    p95_ms: Figure | None
    p99_ms: Figure | None
    requests: int
    failures: int
    reasons: dict[str, int]
    split: dict[str, Figure]
    batches: list[BatchTimes]
    cpu_cores: Figure | None
    memory_bytes: int | None
    energy_j: Figure | None


class OwnServer(TypedDict, total=False):
    """The process of a measurement's own server. started: its start time in Unix seconds, because ids are used again."""

    pid: int
    started: float


class Measurement(models.Model):
    """config: the configuration that was measured. release: the newest release at that time, 0 for none. note: a sentence about
    the end of a measurement that is not done."""

    version = models.ForeignKey(Version, on_delete=models.CASCADE, related_name="measurements")
    job = models.ForeignKey(Job, null=True, on_delete=models.SET_NULL, related_name="+")
    state = models.CharField(max_length=16, choices=MeasurementState.choices, default=MeasurementState.WAITING)
    note = models.TextField(blank=True, default="")
    release = models.PositiveIntegerField(default=0)
    config = models.TextField(blank=True, default="")
    sha256 = models.CharField(max_length=64, blank=True, default="")
    plan: "models.JSONField[MeasurementPlan, MeasurementPlan]" = models.JSONField()
    machine: "models.JSONField[dict[str, object], dict[str, object]]" = models.JSONField(default=dict)
    server: "models.JSONField[OwnServer, OwnServer]" = models.JSONField(default=dict)
    loads: "models.JSONField[list[LoadFigures], list[LoadFigures]]" = models.JSONField(default=list)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"measurement {self.pk} of {self.version}"

    @property
    def under_way(self) -> bool:
        return self.state in (MeasurementState.WAITING, MeasurementState.RUNNING)

    @property
    def has_unstable(self) -> bool:
        return any(not figures["stable"] for figures in self.loads)

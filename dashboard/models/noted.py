"""Requests that stood out: the slowest and the failed ones of each version, and failures counted by cause."""

from datetime import UTC, datetime
from typing import NamedTuple, TypedDict

from django.db import models

from dashboard.models.server import Server


class NotedDetails(TypedDict):
    """What a server tells of a request. Times in us, None if not measured. code, reason, cause, message: of a failed request.
    message may quote what the client sent, and needs the right CLIENT_DATA (access.authorisation); so does cause."""

    id: str
    queue_us: int | None
    input_us: int | None
    infer_us: int | None
    output_us: int | None
    rows: int
    batch_size: int | None
    arm: str
    trace: str
    code: str
    reason: str
    cause: str
    message: str


PHASES = ("queue", "input", "compute", "output")


class Phase(NamedTuple):
    """A part of a request's time. x, width: its place in a bar of 100."""

    name: str
    ms: float
    x: float
    width: float


class NotedRequest(models.Model):
    """One request. at: when it arrived, in unix seconds. key: its place in the spans of the server's process, so that it is
    stored once."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    model_name = models.CharField(max_length=200)
    version = models.PositiveBigIntegerField()
    failed = models.BooleanField()
    at = models.PositiveBigIntegerField()
    duration_us = models.PositiveBigIntegerField()
    details: "models.JSONField[NotedDetails, NotedDetails]" = models.JSONField()
    key = models.CharField(max_length=80)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["server", "key"], name="noted_request_once")]
        indexes = [
            models.Index(fields=["model_name", "failed", "at"], name="noted_request_of_model"),
            models.Index(fields=["at"], name="noted_request_at"),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} {self.version} at {self.at}: {self.duration_us} us"

    @property
    def moment(self) -> datetime:
        return datetime.fromtimestamp(self.at, UTC)

    @property
    def duration_ms(self) -> float:
        return self.duration_us / 1000

    @property
    def phases(self) -> list[Phase]:
        """The measured parts of its time, in their order; [] if none was measured."""
        found: list[Phase] = []
        x = 0.0
        for name, field in zip(PHASES, ("queue_us", "input_us", "infer_us", "output_us"), strict=True):
            spent = self.details.get(field)
            if not isinstance(spent, int):
                return []
            width = min(100.0 - x, 100.0 * max(0, spent) / max(1, self.duration_us))
            found.append(Phase(name, spent / 1000, x, width))
            x += width
        return found


class FailureCount(models.Model):
    """The failures of a version with one cause in a span of time. at: the beginning of the span; first, last: the first and the
    last failure, in unix seconds. cause: a message without its numbers and quoted parts. reason: Triton's word."""

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    model_name = models.CharField(max_length=200)
    version = models.PositiveBigIntegerField()
    at = models.PositiveBigIntegerField()
    cause = models.CharField(max_length=500)
    code = models.CharField(max_length=32)
    reason = models.CharField(max_length=32)
    count = models.PositiveBigIntegerField()
    first = models.FloatField()
    last = models.FloatField()
    key = models.CharField(max_length=80)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["server", "key"], name="failure_count_once")]
        indexes = [
            models.Index(fields=["model_name", "at"], name="failure_count_of_model"),
            models.Index(fields=["at"], name="failure_count_at"),
        ]

    def __str__(self) -> str:
        return f"{self.model_name} {self.version}: {self.count} x {self.cause}"

"""Metrics history: the figures of each version in spans of equal length, ready to be merged."""

from django.db import models

from dashboard.models.server import Server


class MetricSample(models.Model):
    """The figures of one version in one span of time; if `model_name` is "", the figures of the whole server and its process.

    If a span has a row of the server but none of a version, the version had no requests. If it has no row of the server,
    `watch` did not run.
    """

    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="samples")
    model_name = models.CharField(max_length=200, blank=True, default="")
    version = models.PositiveBigIntegerField(default=0)
    resolution = models.PositiveSmallIntegerField()  # seconds: one of metrics.samples.RESOLUTIONS
    at = models.PositiveBigIntegerField()  # unix seconds at which the span begins, a multiple of the resolution
    data = models.BinaryField()  # see metrics.samples.encode

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["server", "resolution", "model_name", "version", "at"], name="metric_sample_once"
            )
        ]
        indexes = [models.Index(fields=["resolution", "at"])]

    def __str__(self) -> str:
        return f"{self.model_name or self.server} at {self.at} over {self.resolution} s"

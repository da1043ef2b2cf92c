"""Metrics history: what each version did in spans of one length, ready to merge."""

from django.db import models

from dashboard.models.server import Server


class MetricSample(models.Model):
    """What one version did in one span of time; with `model_name` "" the server as a whole, and its process.

    Where the server has a row and a version has none, the version did nothing. Where the server has none, `watch` did not run.
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

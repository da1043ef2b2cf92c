"""The objective of a model, and its requests counted for it."""

from django.db import models

from dashboard.models.model import Model


class Objective(models.Model):
    """The share of a model's requests that should be good: answered without an error, and within a latency.

    percent: of all requests, such as 99.9. latency_ms: a slower answer counts as bad; None for no limit.
    counted: whether the history before the objective has been counted with this latency.
    """

    model = models.OneToOneField(Model, on_delete=models.CASCADE, related_name="objective")
    percent = models.FloatField()
    latency_ms = models.FloatField(null=True)
    counted = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.model}: {self.percent} %"

    @property
    def in_words(self) -> str:
        """The objective in words: "99.9 % of requests answered, under 50 ms"."""
        under = f", under {self.latency_ms:g} ms" if self.latency_ms is not None else ""
        return f"{self.percent:g} % of requests answered{under}"


class ObjectiveCount(models.Model):
    """The requests of a model in one minute or hour, counted for its objective. A span without requests has no row.

    requests: those of clients that were not cancelled. failed: with an error. slow: answered, but over the latency.
    """

    objective = models.ForeignKey(Objective, on_delete=models.CASCADE, related_name="counts", db_index=False)
    resolution = models.PositiveSmallIntegerField()  # seconds: objectives.counts.MINUTE or HOUR
    at = models.PositiveBigIntegerField()  # Unix seconds at which the span begins
    requests = models.PositiveBigIntegerField()
    failed = models.PositiveBigIntegerField()
    slow = models.PositiveBigIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["objective", "resolution", "at"], name="objective_count_once")]
        indexes = [models.Index(fields=["resolution", "at"], name="objective_count_of_time")]

    def __str__(self) -> str:
        return f"{self.objective} at {self.at} over {self.resolution} s"

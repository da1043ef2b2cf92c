"""Truth: the labels of a model's requests, which come after the answers, and the metric that compares them."""

from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.shared.choices import TruthKind


class TruthMetric(models.Model):
    """How the labels of a model are compared with its answers.

    output: the tensor that is the prediction. expression: of the kind "own". higher_is_better: of the kind "own".
    limit: a guardrail: by how much a candidate may be worse than stable; None for no guardrail. looked: the rollout and the
    number of the candidate's labels at the last comparison of a guardrail. bound: an alert: the value than which the version
    that serves must not be worse; None for no bound. trouble: why an alert is told now, as a sentence; "" for no reason.
    """

    model = models.OneToOneField(Model, on_delete=models.CASCADE, related_name="truth_metric")
    kind = models.CharField(max_length=16, choices=TruthKind.choices)
    output = models.CharField(max_length=200)
    expression = models.CharField(max_length=200, blank=True, default="")
    higher_is_better = models.BooleanField(default=True)
    limit = models.FloatField(null=True)
    looked: "models.JSONField[dict[str, int], dict[str, int]]" = models.JSONField(default=dict)
    bound = models.FloatField(null=True)
    trouble = models.TextField(blank=True, default="")
    changed_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return f"{self.get_kind_display()} of {self.model.name}"


class TruthLabel(models.Model):
    """The label of one request; a later one for the same request replaces it.

    version, answered_at: of the captured answer; None until it is found. score: of the answer by the model's metric; None if
    the two cannot be compared.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="truth_labels")
    request_id = models.CharField(max_length=200)
    value = models.CharField(max_length=200)
    received_at = models.DateTimeField(default=timezone.now)
    version = models.PositiveBigIntegerField(null=True)
    answered_at = models.DateTimeField(null=True)
    score = models.FloatField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["model", "request_id"], name="truth_label_once")]
        indexes = [
            models.Index(fields=["model", "version", "answered_at"], name="truth_label_of_version"),
            models.Index(fields=["received_at"], name="truth_label_received"),
        ]

    def __str__(self) -> str:
        return f"label of request {self.request_id}"

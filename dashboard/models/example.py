"""An example: a request of a model that people keep by name, and the expected answer if it is golden."""

from collections.abc import Iterable
from datetime import datetime
from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from dashboard.shared.choices import ExampleSource
from repository.core.json_types import JsonObject


class GoldenOutcome(TypedDict):
    """The outcome of a golden request's last run."""

    passed: bool
    detail: str  # a clause: the reason of the failure, or the largest deviation
    version: str  # the version that answered, "" for none
    release: int  # the release that was checked, or that served; 0 for none
    checked: bool  # whether a server ran it before the release served, and not a person
    ms: float
    at: str  # ISO 8601


class Example(models.Model):
    """request, expected: in the JSON of repository.core.golden. golden: whether it runs before a release serves."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="examples")
    name = models.CharField(max_length=100)
    request: "models.JSONField[JsonObject, JsonObject]" = models.JSONField()
    expected: "models.JSONField[JsonObject | None, JsonObject | None]" = models.JSONField(null=True)
    golden = models.BooleanField(default=False)
    absolute = models.FloatField(default=0.0)
    relative = models.FloatField(default=1e-3)
    # size_bytes, signature: for lists, which do not read the tensors.
    size_bytes = models.PositiveIntegerField(default=0)  # the size of request and expected answer as JSON
    signature: "models.JSONField[Signature, Signature]" = models.JSONField(default=dict)  # inputs and expected outputs
    outcome: "models.JSONField[GoldenOutcome | None, GoldenOutcome | None]" = models.JSONField(null=True)
    source = models.CharField(max_length=16, choices=ExampleSource.choices, default=ExampleSource.TYPED)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["model", "name"], name="example_name_once")]

    def __str__(self) -> str:
        return f"{self.model} example {self.name}"

    @property
    def of_clients(self) -> bool:
        """True if a client sent the example; its elements then need the right CLIENT_DATA (access.authorisation)."""
        return self.source == ExampleSource.TRAFFIC

    @property
    def inputs(self) -> str:
        """Its inputs in words."""
        return in_words(self.signature.get("inputs", []))

    @property
    def outcome_at(self) -> datetime | None:
        return datetime.fromisoformat(self.outcome["at"]) if self.outcome else None

    @property
    def tolerance_words(self) -> str:
        """The tolerance as pages show it."""
        parts = [f"{self.absolute:g}"] if self.absolute else []
        parts += [f"{self.relative * 100:g} %"] if self.relative else []
        return f"± {' + '.join(parts)}" if parts else "exactly"


def in_words(rows: Iterable[TensorRow]) -> str:
    """Return tensors in words: "x FP32 [1, 4], y INT64 [1]"."""
    return ", ".join(f"{row['name']} {row['datatype']} {row['shape']}" for row in rows)

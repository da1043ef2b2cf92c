"""An example: a request of a model that people keep by name, and the answer that it must have where it is golden."""

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
    """What a golden request came to when it was asked last."""

    passed: bool
    detail: str  # why it failed, or how near the answer was: a clause
    version: str  # which one answered, "" where none did
    release: int  # the one that was checked, or that served; 0 for none
    checked: bool  # by a server before the release served, not by a person
    ms: float
    at: str  # ISO 8601


class Example(models.Model):
    """request, expected: as repository.core.golden reads and writes them. golden: it is run before a release serves."""

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="examples")
    name = models.CharField(max_length=100)
    request: "models.JSONField[JsonObject, JsonObject]" = models.JSONField()
    expected: "models.JSONField[JsonObject | None, JsonObject | None]" = models.JSONField(null=True)
    golden = models.BooleanField(default=False)
    absolute = models.FloatField(default=0.0)
    relative = models.FloatField(default=1e-3)
    # Both for lists, which leave the tensors in the database.
    size_bytes = models.PositiveIntegerField(default=0)  # of request and expected answer as JSON
    signature: "models.JSONField[Signature, Signature]" = models.JSONField(default=dict)  # of what is sent and expected
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
        """Whether a client sent it, so that not everybody may see its elements (access.authorisation.CLIENT_DATA)."""
        return self.source == ExampleSource.TRAFFIC

    @property
    def inputs(self) -> str:
        """What it sends, in words."""
        return in_words(self.signature.get("inputs", []))

    @property
    def outcome_at(self) -> datetime | None:
        return datetime.fromisoformat(self.outcome["at"]) if self.outcome else None

    @property
    def tolerance_words(self) -> str:
        """How far an answer may be from what is expected, as pages write it."""
        parts = [f"{self.absolute:g}"] if self.absolute else []
        parts += [f"{self.relative * 100:g} %"] if self.relative else []
        return f"± {' + '.join(parts)}" if parts else "exactly"


def in_words(rows: Iterable[TensorRow]) -> str:
    """Return what tensors are, for people: "x FP32 [1, 4], y INT64 [1]"."""
    return ", ".join(f"{row['name']} {row['datatype']} {row['shape']}" for row in rows)

"""A model: a folder of the managed repository, and whether it should be served."""

from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.shared.choices import DesiredState, VersionState
from dashboard.shared.exceptions import NotFound
from repository.files.drift import Fingerprint


class Retention(TypedDict, total=False):
    """The versions that retention keeps in the repository: the newest `count` versions, and the versions of the last `days`."""

    count: int
    days: int


class Budget(TypedDict, total=False):
    """The budget of a model's releases: the highest p99 in ms at a number of requests a second; {} for no budget."""

    p99_ms: float
    per_second: float


class ReplayGate(TypedDict, total=False):
    """The replay that a version must pass before it goes live; {} for none.

    capture: its id. most_percent: of the compared requests that may differ beyond the tolerance. most_p99_times: the highest
    p99, in multiples of the captured one; None for any. No request may fail.
    """

    capture: str
    most_percent: float
    most_p99_times: float | None
    absolute: float
    relative: float


class Model(models.Model):
    """A folder of the managed repository. Its releases hold the versions that it serves and its configuration."""

    name = models.CharField(max_length=200, unique=True)
    description = models.TextField(blank=True, default="")
    tags: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list, blank=True)
    desired_state = models.CharField(
        max_length=16, choices=DesiredState.choices, default=DesiredState.UNLOADED, db_index=True
    )
    # Grows with each change that servers must apply: publish, configuration, load, unload. See ModelSync.
    generation = models.PositiveBigIntegerField(default=0)
    # The highest version number ever given, so that none is used twice.
    last_number = models.PositiveBigIntegerField(default=0)
    # fingerprint: the fingerprint of the model's folder when the folder was last adopted; {} before that. drift: one sentence
    # for each change made by hand since then.
    fingerprint: "models.JSONField[Fingerprint, Fingerprint]" = models.JSONField(default=dict)
    drift: "models.JSONField[list[str], list[str]]" = models.JSONField(default=list)
    # {} keeps all versions.
    retention: "models.JSONField[Retention, Retention]" = models.JSONField(default=dict)
    budget: "models.JSONField[Budget, Budget]" = models.JSONField(default=dict)
    replay_gate: "models.JSONField[ReplayGate, ReplayGate]" = models.JSONField(default=dict)
    capture_readers = models.ManyToManyField(settings.AUTH_USER_MODEL, blank=True, related_name="+")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name"]
        permissions = [
            ("operate", "Load, unload, make live, configure"),
            ("upload_data", "Upload formats that are data"),
            ("upload_code", "Upload formats that can run code, and convert files by code in them"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def gated(self) -> bool:
        """Whether a version must pass something before it goes live."""
        return bool(self.budget or self.replay_gate)

    def published_numbers(self) -> list[int]:
        """Return the numbers of the versions that are in the repository."""
        return list(self.versions.filter(state=VersionState.PUBLISHED).values_list("number", flat=True))

    @classmethod
    def locked(cls, pk: int) -> "Model":
        """Return a model's row, locked until the caller's transaction ends.

        Raises NotFound if the model was deleted meanwhile.
        """
        try:
            return cls.objects.select_for_update().get(pk=pk)
        except cls.DoesNotExist:
            raise NotFound("the model was deleted meanwhile") from None

"""Releases: immutable records of what a model should serve, and what servers reported about each release.

A release is written once. The facts about its life are in other tables, which only `releases.life` writes. A text that changes
nothing for clients also has a row, because servers report which text they have read. Such a row `continues` the previous
release, and has no facts.
"""

from collections.abc import Iterable
from functools import cached_property
from typing import Any, TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.models.server import Server
from dashboard.shared.choices import CheckState, ReleaseKind
from repository.config.document import Document, default_version


class Release(models.Model):
    """The versions and the configuration that a model should serve. The release with the highest number is the wanted one.

    text: the content of config.pbtxt while the release is wanted, with its stamp (repository.config.document).
    versions: the versions that the text's policy selected when the release was made; ascending.
    created_at: also the moment from which the release was wanted.
    traffic: the arms' shares, in per cent, of requests that name no version. Keys are versions or addresses of other servers;
    {} if one version answers all.
    rollout: the rollout of which this release is a step.
    continues: the release of which this row is only another text, or None if this row begins a release.
    """

    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="releases")
    number = models.PositiveIntegerField()
    text = models.TextField()
    sha256 = models.CharField(max_length=64)
    versions: "models.JSONField[list[int], list[int]]" = models.JSONField(default=list)
    aliases: "models.JSONField[dict[str, int], dict[str, int]]" = models.JSONField(default=dict)
    traffic: "models.JSONField[dict[str, float], dict[str, float]]" = models.JSONField(default=dict)
    rollout = models.ForeignKey("dashboard.Rollout", null=True, on_delete=models.SET_NULL, related_name="releases")
    continues = models.ForeignKey("self", null=True, on_delete=models.CASCADE, related_name="texts")
    kind = models.CharField(max_length=16, choices=ReleaseKind.choices, default=ReleaseKind.CONFIGURE)
    summary = models.CharField(max_length=300, blank=True, default="")
    returns_to = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="returned")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="release_number_once")]

    def __str__(self) -> str:
        return f"{self.model} release {self.number}"

    def save(self, *args: Any, **more: Any) -> None:
        """Write the row of a new release. Raises TypeError if the row exists already."""
        if not self._state.adding:
            raise TypeError("a release is immutable: make another one")
        super().save(*args, **more)

    @cached_property
    def document(self) -> Document:
        """The text without its stamp."""
        return Document.read(self.text)

    @property
    def answers(self) -> int:
        """The version that answers requests that name no version; 0 for a release without versions."""
        return default_version(self.versions, self.aliases)

    @property
    def begun(self) -> "Release":
        """The release that this one continues, or else this one."""
        return self.continues or self

    def without_shadow(self, versions: Iterable[int]) -> list[int]:
        """Return the versions that answer clients: all except the shadow candidate of the release's rollout."""
        shadowed = self.rollout.shadowed_version if self.rollout is not None else None
        return [number for number in versions if number != shadowed]


class CheckStep(TypedDict, total=False):
    """One step of a load, as the server reports it (docs/server.md). A running step has `done` and `of`, an ended one `ms`."""

    step: str  # check, memory, load, warm, golden, switch, drain
    done: int
    of: int
    ms: float
    checks: list[dict[str, object]]  # the results of golden requests: name, version, passed, detail
    under_way: int
    failed: bool


class ReleaseCheck(models.Model):
    """A server's last load of a release: its steps, and its error if it failed."""

    release = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="checks")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=8, choices=CheckState.choices)
    steps: "models.JSONField[list[CheckStep], list[CheckStep]]" = models.JSONField(default=list)
    error = models.TextField(blank=True, default="")
    attempts = models.PositiveIntegerField(default=0)  # the number of failed loads in a row
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["release", "server"], name="release_check_once")]

    def __str__(self) -> str:
        return f"{self.release} on {self.server}: {self.state}"


class ReleaseSpan(models.Model):
    """A span of time in which a server served a release. `ended_at` is null while the server still serves it."""

    # The foreign keys have no indexes: SQLite would choose the index of the server, which covers every span of every model.
    release = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="spans", db_index=False)
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="spans", db_index=False)
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+", db_index=False)
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-started_at", "-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["model", "server"], condition=models.Q(ended_at__isnull=True), name="release_span_open_once"
            )
        ]
        indexes = [
            models.Index(fields=["model", "server", "-started_at"], name="release_span_of_model"),
            models.Index(fields=["release", "server", "started_at"], name="release_span_of_release"),
            models.Index(fields=["started_at"], name="release_span_of_time"),
        ]

    def __str__(self) -> str:
        return f"{self.release} on {self.server} from {self.started_at}"

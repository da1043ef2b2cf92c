"""Releases: what a model was wanted to serve, one immutable record after the other, and what servers told of each.

A release is written once. The facts of its life are rows of their own, which `releases.life` alone writes. A text with which
clients meet nothing else than before is a row, too, for a server says which text it has read; but it begins no release: it
`continues` the one before, whose facts go on.
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
    """What a model serves, and with which configuration; the highest number is the wanted one.

    text: config.pbtxt as it lies on disk while the release is the wanted one, with its stamp (repository.config.document).
    versions: what the text serves by its version policy, resolved when the release was made; ascending.
    created_at: also the moment from which on the release was wanted.
    traffic: per cent of the requests without a version, by the version (or the address of another server) that answers them;
    {} where one answers all.
    rollout: the one that it is a step of.
    continues: the release to which this is only another text; None where it begins one.
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
        """Write the row of a new release; one that was made never changes."""
        if not self._state.adding:
            raise TypeError("a release is immutable: make another one")
        super().save(*args, **more)

    @cached_property
    def document(self) -> Document:
        """The text without its stamp."""
        return Document.read(self.text)

    @property
    def answers(self) -> int:
        """The version that answers where a request names none; 0 for a release without versions."""
        return default_version(self.versions, self.aliases)

    @property
    def begun(self) -> "Release":
        """The release that this is, or is only another text of."""
        return self.continues or self

    def without_shadow(self, versions: Iterable[int]) -> list[int]:
        """Return those of some versions that answer clients: not one that the release's rollout only asks in a shadow."""
        shadowed = self.rollout.shadowed_version if self.rollout is not None else None
        return [number for number in versions if number != shadowed]


class CheckStep(TypedDict, total=False):
    """One step of a load, as the server reports it (docs/server.md); `done` of `of` while it is under way, `ms` afterwards."""

    step: str  # check, memory, load, warm, golden, switch, drain
    done: int
    of: int
    ms: float
    checks: list[dict[str, object]]  # of the golden requests: name, version, passed, detail
    under_way: int
    failed: bool


class ReleaseCheck(models.Model):
    """The last time that a server loaded a release: whether it passed, step by step, or why it failed."""

    release = models.ForeignKey(Release, on_delete=models.CASCADE, related_name="checks")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="+")
    state = models.CharField(max_length=8, choices=CheckState.choices)
    steps: "models.JSONField[list[CheckStep], list[CheckStep]]" = models.JSONField(default=list)
    error = models.TextField(blank=True, default="")
    attempts = models.PositiveIntegerField(default=0)  # failed ones in a row
    started_at = models.DateTimeField(default=timezone.now)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["release", "server"], name="release_check_once")]

    def __str__(self) -> str:
        return f"{self.release} on {self.server}: {self.state}"


class ReleaseSpan(models.Model):
    """From when to when a server served a release; without an end, it serves now."""

    # Without indexes of their own: SQLite would choose that of the server, which has every span of every model.
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

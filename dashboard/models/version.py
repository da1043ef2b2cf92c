"""One published version: immutable files and what is known of them."""

from collections.abc import Mapping
from typing import TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.models.upload import Upload
from dashboard.models.upload_json import Finding, TensorRow
from dashboard.shared.choices import VersionState
from repository.config.signature import SignatureObject


class Signature(TypedDict, total=False):
    """The tensors of a version: `datatype` in V2's words ("FP32"), `shape` with -1 for a dimension that varies."""

    inputs: list[TensorRow]
    outputs: list[TensorRow]


class ArchiveFacts(TypedDict):
    """What an archive says of itself."""

    name: str
    version: str  # any text, such as "1.0"
    handler: str
    streams: bool  # it answers in several parts


class VersionDetails(TypedDict, total=False):
    """What is known of a version beyond its signature. The first five are as the inspection found them.

    signature: what the model file itself says of its tensors, None where it says nothing; `Version.signature` is what a
    configuration makes of it.
    """

    opset: int
    producer: str
    backend: str
    problems: list[Finding]
    signature: SignatureObject | None
    files: list[str]  # their names
    archive: ArchiveFacts  # of an archive alone
    runs_code: list[str]  # what of it runs as code, in sentences (configuration.needs)
    missing: bool  # somebody took its folder out of the repository


class Version(models.Model):
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveBigIntegerField()
    format = models.CharField(max_length=32)
    filename = models.CharField(max_length=255, blank=True, default="")
    size_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    signature: "models.JSONField[Mapping[str, object], Signature]" = models.JSONField(default=dict)
    details: "models.JSONField[Mapping[str, object], VersionDetails]" = models.JSONField(default=dict)
    # The text that fits these files: as it was published with them, or proposed for them. Never stamped; kept for good.
    config = models.TextField(blank=True, default="")
    note = models.TextField(blank=True, default="")
    state = models.CharField(max_length=16, choices=VersionState.choices, default=VersionState.PUBLISHED)
    upload = models.ForeignKey(Upload, null=True, on_delete=models.SET_NULL, related_name="versions")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=150, blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="version_number_once")]

    def __str__(self) -> str:
        return f"{self.model} version {self.number}"

    @property
    def archive_version(self) -> str:
        """The version that an archive says itself, any text; "" for what is none."""
        archive = self.details.get("archive")
        return archive["version"] if archive else ""

    @property
    def label(self) -> str:
        return f"Version {self.number} ({self.archive_version})" if self.archive_version else f"Version {self.number}"

    @property
    def streams(self) -> bool:
        """Whether it is an archive whose code answers in several parts."""
        archive = self.details.get("archive")
        return archive is not None and archive["streams"]

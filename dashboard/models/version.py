"""One published version: immutable files and their facts."""

from collections.abc import Mapping
from typing import Any, TypedDict

from django.conf import settings
from django.db import models
from django.utils import timezone

from dashboard.models.model import Model
from dashboard.models.upload import Upload
from dashboard.models.upload_json import Finding, TensorRow
from dashboard.shared.choices import VersionState
from repository.config.signature import SignatureObject


class Signature(TypedDict, total=False):
    """The tensors of a version. Datatypes have V2's names ("FP32"); a dimension that varies is -1 in a shape."""

    inputs: list[TensorRow]
    outputs: list[TensorRow]


class ArchiveFacts(TypedDict):
    """The facts that an archive holds about itself."""

    name: str
    version: str  # any text, such as "1.0"
    handler: str
    streams: bool  # whether the handler answers in several parts


class VersionDetails(TypedDict, total=False):
    """The facts of a version beyond its signature. The first five are from the inspection.

    signature: the tensors that the model file itself declares, None if it declares no tensors.
    `Version.signature` is the signature after the configuration.
    """

    opset: int
    producer: str
    backend: str
    problems: list[Finding]
    signature: SignatureObject | None
    files: list[str]  # their names
    lineage: list[dict[str, Any]]  # of converted files: a row for each conversion (conversions.lineage)
    fetched_from: str  # the source of an upload whose files a job fetched, as pages show it
    archive: ArchiveFacts  # only for versions that are archives
    runs_code: list[str]  # sentences about the parts that run as code (configuration.needs)
    missing: bool  # somebody removed its folder from the repository


class Version(models.Model):
    model = models.ForeignKey(Model, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveBigIntegerField()
    format = models.CharField(max_length=32)
    filename = models.CharField(max_length=255, blank=True, default="")
    size_bytes = models.PositiveBigIntegerField(default=0)
    sha256 = models.CharField(max_length=64, blank=True, default="")
    signature: "models.JSONField[Mapping[str, object], Signature]" = models.JSONField(default=dict)
    details: "models.JSONField[Mapping[str, object], VersionDetails]" = models.JSONField(default=dict)
    # A configuration that fits these files: the one published with them, or the one proposed for them. Never stamped or
    # removed.
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
        """The version that an archive gives itself, which may be any text; "" for other formats."""
        archive = self.details.get("archive")
        return archive["version"] if archive else ""

    @property
    def label(self) -> str:
        return f"Version {self.number} ({self.archive_version})" if self.archive_version else f"Version {self.number}"

    @property
    def streams(self) -> bool:
        """True if the version is an archive whose code answers in several parts."""
        archive = self.details.get("archive")
        return archive is not None and archive["streams"]

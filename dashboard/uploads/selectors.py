"""Reads uploads, for pages and the API."""

from dataclasses import dataclass
from pathlib import PurePosixPath
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import Count, OuterRef, QuerySet, Subquery, Sum

from dashboard.catalog.selectors import ModelSummary, model_summary
from dashboard.configuration.callers import callers_of
from dashboard.metrics.recent import NO_NUMBERS, Numbers, recent_numbers
from dashboard.models import Model, Upload, UploadFile, Version
from dashboard.releases.storage import managed_repository
from dashboard.shared.choices import VersionState
from dashboard.shared.exceptions import NotFound
from dashboard.uploads.states import UNFINISHED
from repository.core.errors import RepositoryError
from repository.core.layout import check_name


def uploads_open() -> QuerySet[Upload]:
    """Return the uploads that can still be continued or published, with the number and sizes of their files."""
    files = UploadFile.objects.filter(upload=OuterRef("pk")).order_by().values("upload")
    sums = {"file_count": Count("pk"), "announced_bytes": Sum("size"), "arrived_bytes": Sum("received")}
    subqueries = {name: Subquery(files.annotate(sum=one).values("sum")) for name, one in sums.items()}
    return Upload.objects.filter(state__in=UNFINISHED).annotate(**subqueries).select_related("job")


def upload_get(pk: UUID | str, *, with_files: bool = True) -> Upload:
    """Return an upload. with_files: with all its files, which may be 10,000."""
    rows = Upload.objects.select_related("job", "user")
    try:
        return (rows.prefetch_related("files") if with_files else rows).get(pk=pk)
    except (Upload.DoesNotExist, ValidationError):
        raise NotFound("there is no such upload; it may have expired") from None


def uploads_of_parts(upload: Upload) -> list[Upload]:
    """Return the uploads of the models that a converted one calls."""
    return list(Upload.objects.filter(pk__in=upload.conversion.get("parts", [])).order_by("model_name"))


def missing_paths(upload: Upload) -> list[str]:
    """Return the paths, within the upload, of missing files with its model's weights; [] if they cannot be added."""
    missing = upload.proposal.get("missing", [])
    models = [file.path for file in upload.files.all() if file.path.lower().endswith(".onnx")]
    if not missing or len(models) != 1:
        return []
    folder = PurePosixPath(models[0]).parent
    return [str(folder / name) for name in missing]


# -- models that have a name already -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Existing:
    """A model whose name a person typed for a new one. newest: its newest version. callers: the ensembles that call it."""

    summary: ModelSummary
    newest: Version | None
    callers: list[str]
    numbers: Numbers


def name_is_taken(name: str) -> bool:
    """Return whether a managed model or a folder of the repository has that name; an invalid name is free."""
    try:
        return Model.objects.filter(name=check_name(name)).exists() or managed_repository().has_model(name)
    except RepositoryError:
        return False


def free_name(name: str) -> str:
    """Return a similar name that is free; "" if all up to number 99 are taken."""
    return next((free for number in range(2, 100) if not name_is_taken(free := f"{name}_{number}")), "")


def existing_model(name: str) -> Existing | None:
    """Return the managed model of a name, or None if there is none."""
    model = Model.objects.filter(name=name).first()
    if model is None:
        return None
    newest = model.versions.filter(state=VersionState.PUBLISHED).order_by("-number").first()
    numbers = recent_numbers([name], sparks=False).get(name, NO_NUMBERS)
    return Existing(model_summary(model), newest, callers_of(name), numbers)

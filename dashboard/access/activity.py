"""Who did what, the jobs, the uploads, the tokens."""

from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser
from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from dashboard.models import ApiToken, AuditEntry, Job, Model, Upload
from dashboard.shared.choices import UploadState
from dashboard.shared.exceptions import NotFound

OPEN_UPLOADS = (
    UploadState.RECEIVING,
    UploadState.RECEIVED,
    UploadState.INSPECTING,
    UploadState.INSPECTED,
    UploadState.PUBLISHING,
)


def activity(*, model: Model | None = None, action: str = "", actor_name: str = "") -> QuerySet[AuditEntry]:
    """Newest first. A deleted model's entries are found by its name."""
    entries = AuditEntry.objects.select_related("actor", "model")
    if model is not None:
        entries = entries.filter(model_name=model.name)
    if action:
        entries = entries.filter(action=action)
    return entries.filter(actor_name=actor_name) if actor_name else entries


def jobs(*, model: Model | None = None, state: str = "", kind: str = "") -> QuerySet[Job]:
    rows = Job.objects.select_related("model", "created_by")
    if model is not None:
        rows = rows.filter(model=model)
    if state:
        rows = rows.filter(state=state)
    return rows.filter(kind=kind) if kind else rows


def job_get(pk: int) -> Job:
    try:
        return Job.objects.select_related("model").get(pk=pk)
    except Job.DoesNotExist:
        raise NotFound(f"there is no job {pk}") from None


def uploads_open() -> QuerySet[Upload]:
    """Those that can still be continued or published."""
    return Upload.objects.filter(state__in=OPEN_UPLOADS).prefetch_related("files").select_related("job")


def upload_get(pk: UUID | str, *, with_files: bool = True) -> Upload:
    """with_files: all of them at once. For one of them, they are better left: there may be 10,000."""
    rows = Upload.objects.select_related("job", "user")
    try:
        return (rows.prefetch_related("files") if with_files else rows).get(pk=pk)
    except (Upload.DoesNotExist, ValidationError):
        raise NotFound("there is no such upload; it may have expired") from None


def tokens(user: AbstractBaseUser) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(user=user).select_related("user")

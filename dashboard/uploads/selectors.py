"""What the pages and the API show of uploads."""

from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import QuerySet

from dashboard.models import Upload
from dashboard.shared.exceptions import NotFound
from dashboard.uploads.states import UNFINISHED


def uploads_open() -> QuerySet[Upload]:
    """Those that can still be continued or published."""
    return Upload.objects.filter(state__in=UNFINISHED).prefetch_related("files").select_related("job")


def upload_get(pk: UUID | str, *, with_files: bool = True) -> Upload:
    """with_files: all of them at once. For one of them, they are better left: there may be 10,000."""
    rows = Upload.objects.select_related("job", "user")
    try:
        return (rows.prefetch_related("files") if with_files else rows).get(pk=pk)
    except (Upload.DoesNotExist, ValidationError):
        raise NotFound("there is no such upload; it may have expired") from None

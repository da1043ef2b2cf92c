"""Reads about jobs, for pages and REST."""

from django.db.models import QuerySet

from dashboard.models import Job, Model
from dashboard.shared.exceptions import NotFound


def jobs(*, model: Model | None = None, state: str = "", kind: str = "") -> QuerySet[Job]:
    rows = Job.objects.select_related("model", "created_by")
    if model is not None:
        rows = rows.filter(model=model)
    if state:
        rows = rows.filter(state=state)
    return rows.filter(kind=kind) if kind else rows


def job_get(pk: int) -> Job:
    """Return a job. Raises NotFound if there is no job of that id."""
    try:
        return Job.objects.select_related("model").get(pk=pk)
    except Job.DoesNotExist:
        raise NotFound(f"there is no job {pk}") from None

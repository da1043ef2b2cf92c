"""The job kind `archive`: params {"version": id}."""

from typing import Any

from dashboard.jobs.context import JobContext
from dashboard.models import Job, Version
from dashboard.versions.moves import archive_run, move_abandoned


def run(context: JobContext) -> dict[str, Any]:
    return archive_run(version=Version.objects.get(pk=context.params["version"]), context=context)


def abandoned(job: Job) -> None:
    move_abandoned(job=job)

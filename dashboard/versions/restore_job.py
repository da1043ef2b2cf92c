"""The job kind `restore`: params {"version": id}."""

from typing import Any

from dashboard.jobs.context import JobContext
from dashboard.models import Job, Version
from dashboard.versions.moves import move_abandoned, restore_run


def run(context: JobContext) -> dict[str, Any]:
    return restore_run(version=Version.objects.get(pk=context.params["version"]), context=context)


def abandoned(job: Job) -> None:
    move_abandoned(job=job)

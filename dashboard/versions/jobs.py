"""Archiving and restoring as kinds of job; params {"version": id}."""

from typing import Any

from dashboard.jobs.context import JobContext
from dashboard.jobs.kinds import Kind
from dashboard.models import Job, Version
from dashboard.versions.moves import archive_run, move_abandoned, restore_run


def _archive(context: JobContext) -> dict[str, Any]:
    return archive_run(version=Version.objects.get(pk=context.params["version"]), context=context)


def _restore(context: JobContext) -> dict[str, Any]:
    return restore_run(version=Version.objects.get(pk=context.params["version"]), context=context)


def _abandoned(job: Job) -> None:
    move_abandoned(job=job)


ARCHIVE = Kind(_archive, _abandoned)
RESTORE = Kind(_restore, _abandoned)

"""Inspecting and publishing as kinds of job; params {"upload": id}."""

from typing import Any

from dashboard.jobs.context import JobContext
from dashboard.jobs.kinds import Kind
from dashboard.models import Job, Upload
from dashboard.uploads.inspection import inspection_abandoned, upload_inspect
from dashboard.uploads.publication import publication_abandoned, publication_run


def _inspect(context: JobContext) -> dict[str, Any]:
    return upload_inspect(upload=Upload.objects.get(pk=context.params["upload"]), context=context)


def _inspection_abandoned(job: Job) -> None:
    inspection_abandoned(job=job)


def _publish(context: JobContext) -> dict[str, Any]:
    return publication_run(upload=Upload.objects.get(pk=context.params["upload"]), context=context)


def _publication_abandoned(job: Job) -> None:
    publication_abandoned(job=job)


INSPECT = Kind(_inspect, _inspection_abandoned)
PUBLISH = Kind(_publish, _publication_abandoned)

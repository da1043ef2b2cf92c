"""The job kind `publish`: params {"upload": id}."""

from typing import Any

from dashboard.jobs.context import JobContext
from dashboard.models import Job, Upload
from dashboard.uploads.publication import publication_abandoned, publication_run


def run(context: JobContext) -> dict[str, Any]:
    return publication_run(upload=Upload.objects.get(pk=context.params["upload"]), context=context)


def abandoned(job: Job) -> None:
    publication_abandoned(job=job)

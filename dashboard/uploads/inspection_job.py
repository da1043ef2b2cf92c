"""The job kind `inspect`: params {"upload": id}."""

from typing import Any

from dashboard.jobs.context import JobContext
from dashboard.models import Job, Upload
from dashboard.uploads.inspection import inspection_abandoned, upload_inspect


def run(context: JobContext) -> dict[str, Any]:
    upload = Upload.objects.get(pk=context.params["upload"])
    return upload_inspect(upload=upload, context=context)


def abandoned(job: Job) -> None:
    inspection_abandoned(job=job)

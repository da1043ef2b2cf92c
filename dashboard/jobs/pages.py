"""Pages of a job: its progress, and cancelling it."""

from django.http import HttpRequest, HttpResponse

from dashboard.access.authorisation import Right
from dashboard.jobs.kinds import kinds
from dashboard.jobs.selectors import job_get
from dashboard.jobs.services import job_cancel
from dashboard.shared.choices import JobState
from dashboard.web.addresses import get, post
from dashboard.web.pages import call_service, respond


@get("jobs/<int:pk>/", Right.VIEW)
def job(request: HttpRequest, pk: int) -> HttpResponse:
    found = job_get(pk)
    over = found.state not in (JobState.QUEUED, JobState.RUNNING)
    kind = kinds().get(found.kind)  # None for a job of a package that is not installed any more
    upload = found.uploads.first() if kind is not None and kind.of_upload else None
    page = kind.page(found) if kind is not None and kind.page is not None else None
    return respond(request, "jobs/job", {"job": found, "kind": kind, "over": over, "upload": upload, "page": page})


@post("jobs/<int:pk>/cancel", Right.VIEW, name="job_cancel")
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    """Cancel a job. job_cancel checks the right: operators and the person who began the job may cancel it."""
    found = job_get(pk)
    done = f"Job {pk} stops at its next step, and leaves nothing half done."
    return call_service(request, job_cancel, done, "job", pk, job=found)

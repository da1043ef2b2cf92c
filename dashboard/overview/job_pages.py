"""The list of jobs, under way and ended. An upload with all its jobs is one row."""

from django.conf import settings
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse

from dashboard.access.authorisation import Right
from dashboard.jobs.kinds import kinds
from dashboard.jobs.selectors import jobs as jobs_of
from dashboard.jobs.services import ENDED
from dashboard.models import Job
from dashboard.shared.choices import JobState
from dashboard.uploads.selectors import uploads_open
from dashboard.uploads.states import UNFINISHED
from dashboard.web.addresses import get
from dashboard.web.pages import page_of, respond

SHOWN = 200  # at most this many uploads, and as many jobs, are listed as under way


@get("jobs/", Right.VIEW)
def jobs(request: HttpRequest) -> HttpResponse:
    state = request.GET.get("state", "")
    of_uploads = [kind.name for kind in kinds().values() if kind.of_upload]
    context = {
        "uploads": uploads_open()[:SHOWN],
        "running": jobs_of().exclude(state__in=ENDED).exclude(kind__in=of_uploads).defer("log")[:SHOWN],
        "jobs": page_of(request, _find_ended(state if state in ENDED else "", of_uploads)),
        "of_uploads": of_uploads,
        "states": [(one.value, one.label) for one in JobState if one in ENDED],
        "state_now": state,
        "kept_days": settings.JOB_DAYS,
    }
    return respond(request, "overview/jobs", context)


def _find_ended(state: str, of_uploads: list[str]) -> QuerySet[Job]:
    """Return the jobs that ended in this state ("" for any state). A finished upload is represented by its last job."""
    apart = ~Q(kind__in=of_uploads)
    last = Q(uploads__isnull=False) & ~Q(uploads__state__in=UNFINISHED)
    rows = jobs_of().filter(apart | last, state__in=[state] if state else ENDED)
    return rows.prefetch_related("uploads").defer("log").distinct()

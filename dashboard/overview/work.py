"""The list of work: jobs of every kind, and the uploads that can be continued."""

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET

from dashboard.access.authorisation import Right, requires
from dashboard.jobs.selectors import jobs as jobs_of
from dashboard.shared.choices import JobState
from dashboard.uploads.selectors import uploads_open
from dashboard.web.pages import page_of, respond


@require_GET
@requires(Right.VIEW)
def jobs(request: HttpRequest) -> HttpResponse:
    state = request.GET.get("state", "")
    context = {
        "jobs": page_of(request, jobs_of(state=state if state in JobState else "")),
        "uploads": uploads_open(),
        "states": JobState.choices,
        "state_now": state,
    }
    return respond(request, "overview/jobs", context)

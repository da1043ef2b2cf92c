"""The overview: whether everything serves, what changed last, which models are busiest."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from dashboard.access.audit import activity
from dashboard.access.authorisation import Right, requires
from dashboard.catalog.selectors import models_overview
from dashboard.metrics.recent import busiest, recent_numbers
from dashboard.overview.tags import health
from dashboard.servers.selectors import servers
from dashboard.shared.choices import DesiredState
from dashboard.uploads.selectors import uploads_open
from dashboard.web.pages import respond

CHANGES = 10
BUSIEST = 8


@require_GET
@requires(Right.VIEW)
def overview(request: HttpRequest) -> HttpResponse:
    summaries = models_overview()
    context = {
        "servers": servers(),
        "summaries": summaries,
        "attention": [row for row in summaries if row.needs_attention],
        "changing": [row for row in summaries if row.changing],
        "ready_count": sum(row.state == "ready" for row in summaries),
        "asleep_count": sum(row.state == "asleep" for row in summaries),
        "wanted_count": sum(row.model.desired_state == DesiredState.LOADED for row in summaries),
        "total": recent_numbers([])[""],
        "busiest": busiest(BUSIEST),
        "uploads": uploads_open(),
        "changes": activity()[:CHANGES],
    }
    return respond(request, "overview/overview", context, parts=("now", "rows"))


@require_GET
@requires(Right.VIEW)
def health_part(request: HttpRequest) -> HttpResponse:
    return render(request, "overview/health.html", {"health": health()})

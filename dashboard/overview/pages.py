"""The overview: whether everything serves, what changed last, which models are busiest."""

from functools import cached_property

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.functional import SimpleLazyObject
from django.views.decorators.http import require_GET

from dashboard.access.audit import activity
from dashboard.access.authorisation import Right, requires
from dashboard.catalog.selectors import (
    CHANGING,
    NEED_ATTENTION,
    ModelSummary,
    Standing,
    models_standing,
    summaries_of,
)
from dashboard.metrics.recent import busiest, recent_numbers
from dashboard.overview.tags import health
from dashboard.servers.selectors import servers
from dashboard.shared.choices import DesiredState
from dashboard.web.pages import respond

CHANGES = 10
BUSIEST = 8


class Everything:
    """How all models stand, for the part of the page that says so."""

    @cached_property
    def models(self) -> list[Standing]:
        return models_standing()

    @property
    def ready_count(self) -> int:
        return sum(model.state == "ready" for model in self.models)

    @property
    def asleep_count(self) -> int:
        return sum(model.state == "asleep" for model in self.models)

    @property
    def wanted_count(self) -> int:
        return sum(model.desired_state == DesiredState.LOADED for model in self.models)

    def attention(self) -> list[ModelSummary]:
        return summaries_of(model for model in self.models if model.state in NEED_ATTENTION)

    def changing(self) -> list[ModelSummary]:
        return summaries_of(model for model in self.models if model.state in CHANGING)


@require_GET
@requires(Right.VIEW)
def overview(request: HttpRequest) -> HttpResponse:
    context = {  # a part reads what it shows, and no more
        "servers": servers(),
        "everything": Everything(),
        "total": SimpleLazyObject(lambda: recent_numbers([])[""]),
        "busiest": SimpleLazyObject(lambda: busiest(BUSIEST)),
        "changes": activity()[:CHANGES],
    }
    return respond(request, "overview/overview", context, parts=("now", "rows"))


@require_GET
@requires(Right.VIEW)
def health_part(request: HttpRequest) -> HttpResponse:
    return render(request, "overview/health.html", {"health": health()})

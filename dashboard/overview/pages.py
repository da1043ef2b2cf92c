"""The overview: the state of everything, the last changes, the busiest models."""

import time
from functools import cached_property

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.functional import SimpleLazyObject

from dashboard.access.authorisation import Right
from dashboard.access.happenings import changes
from dashboard.alerts import selectors as alerts
from dashboard.catalog.selectors import (
    CHANGING,
    NEED_ATTENTION,
    ModelSummary,
    Standing,
    models_standing,
    summaries_of,
)
from dashboard.metrics.outages import outage_sentence
from dashboard.metrics.recent import busiest, recent_numbers
from dashboard.models import Objective, Rollout, Server
from dashboard.objectives.burn import Budget
from dashboard.objectives.selectors import budgets
from dashboard.overview.tags import health
from dashboard.rollouts.selectors import rollouts_of_note, rollouts_unfinished
from dashboard.servers.selectors import all_down, answers, production_servers, servers
from dashboard.shared.choices import AlertState, DesiredState
from dashboard.web.addresses import get
from dashboard.web.pages import respond

CHANGES = 10
BUSIEST = 8
ROLLOUTS = 5
SERVERS = 5  # if there are more, those that do not answer come first
ALERTS = 5  # the most alerts that fire, and the most budgets, on the page
MOST_TROUBLED = 50  # at most this many models that need attention have a line each
MOST_CHANGING = 3  # if more models change at a time, they share one line


class Everything:
    """The state of all servers, models and rollouts; only the shown parts are read."""

    @cached_property
    def down(self) -> list[Server]:
        """All servers if none of them answers, else []. Then the page lists the servers and no models."""
        return all_down()

    @cached_property
    def models(self) -> tuple[Standing, ...]:
        return models_standing()

    @property
    def serving_count(self) -> int:
        return sum(model.serves and model.desired_state == DesiredState.LOADED for model in self.models)

    @property
    def asleep_count(self) -> int:
        return sum(model.state == "asleep" for model in self.models)

    @property
    def wanted_count(self) -> int:
        return sum(model.desired_state == DesiredState.LOADED for model in self.models)

    @cached_property
    def _troubled(self) -> list[Standing]:
        return [] if self.down else [model for model in self.models if model.state in NEED_ATTENTION]

    @cached_property
    def attention(self) -> list[ModelSummary]:
        """The models that need attention, at most MOST_TROUBLED."""
        return summaries_of(self._troubled[:MOST_TROUBLED])

    @property
    def more_troubled(self) -> int:
        """The number of further models that need attention."""
        return len(self._troubled[MOST_TROUBLED:])

    @cached_property
    def rollouts(self) -> list[Rollout]:
        """The rollouts that cannot continue, and the rollouts that were rolled back in the last day."""
        return [] if self.down else rollouts_of_note()

    @cached_property
    def open(self) -> list[Rollout]:
        """The newest rollouts that are under way or hold an old version, at most ROLLOUTS."""
        return [] if self.down else list(rollouts_unfinished()[:ROLLOUTS])

    @cached_property
    def open_count(self) -> int:
        return 0 if self.down else rollouts_unfinished().count()

    @cached_property
    def _changing(self) -> list[Standing]:
        return [] if self.down else [model for model in self.models if model.state in CHANGING]

    @cached_property
    def changing(self) -> list[ModelSummary]:
        """The models that load or unload, if they are at most MOST_CHANGING."""
        return summaries_of(self._changing) if len(self._changing) <= MOST_CHANGING else []

    @property
    def changing_count(self) -> int:
        """The number of models that load or unload, if they are more than MOST_CHANGING."""
        return len(self._changing) if len(self._changing) > MOST_CHANGING else 0


@get("", Right.VIEW)
def overview(request: HttpRequest) -> HttpResponse:
    found = list(servers())
    shown = found if len(found) <= SERVERS else sorted(found, key=answers)[:SERVERS]
    context = {  # lazy, because each part of the page shows only some of these
        "servers": shown,
        "more_servers": len(found) - len(shown),
        "everything": Everything(),
        "total": SimpleLazyObject(lambda: recent_numbers([])[""]),
        "busiest": SimpleLazyObject(lambda: busiest(BUSIEST)),
        "changes": SimpleLazyObject(lambda: changes()[:CHANGES]),
        "firing": SimpleLazyObject(lambda: alerts.shown(alerts.alerts(AlertState.FIRING)[:ALERTS])),
        "firing_count": SimpleLazyObject(lambda: alerts.alerts(AlertState.FIRING).count()),
        "budgets": SimpleLazyObject(_budgets),
        "outage": SimpleLazyObject(lambda: outage_sentence(list(production_servers()))),
    }
    return respond(request, "overview/overview", context, parts=("now", "busy", "changes"))


def _budgets() -> list[tuple[Objective, Budget]]:
    return budgets(time.time())[:ALERTS]


@get("health", Right.VIEW)
def health_part(request: HttpRequest) -> HttpResponse:
    return render(request, "overview/health.html", {"health": health()})

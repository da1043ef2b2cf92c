"""Reads of objectives: the series of counts, the budget, the burn rates."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db.models import Q, Sum

from dashboard.models import AlertOff, Model, Objective, ObjectiveCount
from dashboard.objectives.burn import (
    HOUR,
    MINUTE,
    PERIOD_S,
    RULES,
    Budget,
    Burning,
    Series,
    Span,
    budget,
    windows,
)
from dashboard.servers.selectors import outages, production_servers

# The minutes reach back over this many whole hours; older counts are read by the hour.
_FINE_HOURS = 6


class Down(NamedTuple):
    """The time of the period in which a server did not answer, so that nobody counted its requests.

    share: of the time that the objective would allow if it were about time: 43 min of 30 days for 99.9 %.
    """

    server: str
    seconds: float
    share: float


@dataclass(frozen=True, slots=True)
class Standing:
    """An objective with its budget, its windows, the bad requests of the period by reason, and what is in no count.

    off: the kinds of alert about it that are switched off.
    """

    objective: Objective
    budget: Budget
    windows: Sequence[Burning]
    failed: int
    slow: int
    down: Sequence[Down]
    off: frozenset[str]

    @property
    def burns(self) -> bool:
        return any(one.burns for one in self.windows)


def objective_of(model: Model) -> Objective | None:
    return Objective.objects.filter(model=model).select_related("model").first()


def objectives() -> list[Objective]:
    return list(Objective.objects.select_related("model").order_by("model__name"))


def series_of(objectives: Iterable[Objective], now: float) -> dict[int, Series]:
    """Return the series of each objective by its id: hours, and minutes for the newest part."""
    pks = [one.pk for one in objectives]
    fine_from = int(now) // HOUR * HOUR - _FINE_HOURS * HOUR
    return {pk: Series(spans) for pk, spans in _spans(pks, int(now) - PERIOD_S, fine_from).items()}


def _spans(pks: list[int], start: int, fine_from: int) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = defaultdict(list)
    rows = ObjectiveCount.objects.filter(objective__in=pks).order_by("at")
    columns = ("objective_id", "at", "requests", "failed", "slow")
    for part in (
        rows.filter(resolution=HOUR, at__gte=start - HOUR, at__lt=fine_from),
        rows.filter(resolution=MINUTE, at__gte=fine_from),
    ):
        for pk, at, requests, failed, slow in part.values_list(*columns):
            found[pk].append(Span(at, requests, failed + slow))
    return {pk: found[pk] for pk in pks}


class Bad(NamedTuple):
    failed: int
    slow: int


def bad_between(objective: Objective, start: float, end: float) -> Bad:
    """Return the bad requests of an objective in the minutes between two moments of the last hours."""
    rows = ObjectiveCount.objects.filter(objective=objective, resolution=MINUTE, at__gte=int(start), at__lte=int(end))
    sums = rows.aggregate(failed=Sum("failed"), slow=Sum("slow"))
    return Bad(sums["failed"] or 0, sums["slow"] or 0)


def standing_of(objective: Objective, now: float) -> Standing:
    """Return the standing of an objective at a moment, in Unix seconds."""
    series, percent = series_of([objective], now)[objective.pk], objective.percent
    rows = ObjectiveCount.objects.filter(objective=objective, resolution=HOUR, at__gte=int(now) - PERIOD_S)
    parts = list(rows.values_list("failed", "slow"))
    off = AlertOff.objects.filter(Q(model=None) | Q(model=objective.model), kind__in=[rule.kind for rule in RULES])
    return Standing(
        objective,
        budget(series, now, percent),
        windows(series, now, percent),
        sum(failed for failed, _ in parts),
        sum(slow for _, slow in parts),
        _down(objective, now),
        frozenset(off.values_list("kind", flat=True)),
    )


def _down(objective: Objective, now: float) -> list[Down]:
    """Return how long each server did not answer in the period, since the model exists."""
    until = datetime.fromtimestamp(now, UTC)
    since = max(until - timedelta(seconds=PERIOD_S), objective.model.created_at)
    servers = list(production_servers())
    spans, found = outages(servers, since, until), []
    for server in servers:
        seconds = sum(((one.end or until) - max(one.start, since)).total_seconds() for one in spans[server.pk])
        if seconds > 0:
            found.append(Down(server.name, seconds, seconds / (PERIOD_S * (1 - objective.percent / 100))))
    return found


def budgets(now: float) -> list[tuple[Objective, Budget]]:
    """Return the budget of every objective, the least left first."""
    found = objectives()
    series = series_of(found, now)
    rows = [(one, budget(series[one.pk], now, one.percent)) for one in found]
    return sorted(rows, key=lambda row: (row[1].left is None, row[1].left or 0.0))

"""What the finders look at: one reading of the database for all of them, each part read when it is first needed."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from dashboard.catalog.selectors import NEED_ATTENTION, ModelSummary, Standing, models_standing, summaries_of
from dashboard.metrics.samples import FINE, decode
from dashboard.models import AlertOff, MetricSample, Objective, Server
from dashboard.objectives.burn import Burning, windows
from dashboard.objectives.selectors import objectives, series_of
from dashboard.servers.selectors import all_down, of_production, servers

QUEUE_S = 180
_MOST_TROUBLED = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """A subject for which a condition holds now. address: the page that leads to the cause, and where the button goes.

    A page of requests has the moment from which on the cause is looked for (`from`), and the part of the page as its anchor.
    opens: whether it begins an alert; else it only keeps one open.
    """

    subject: str
    title: str
    detail: str = ""
    address: str = ""
    model_name: str = ""
    severity: str = ""  # "" for the severity of the kind
    opens: bool = True


class Facts:
    """The state of everything at a moment."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.timestamp = now.timestamp()

    @cached_property
    def off(self) -> dict[str, set[str]]:
        """The kinds that are switched off, each with the names of its models; "" stands for the installation."""
        found: dict[str, set[str]] = defaultdict(set)
        for kind, model_name in AlertOff.objects.values_list("kind", "model__name"):
            found[kind].add(model_name or "")
        return found

    @cached_property
    def servers(self) -> list[Server]:
        return list(servers())

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """All models; none while no server answers, because then the server is the fault."""
        return () if all_down() else models_standing()

    @cached_property
    def troubled(self) -> list[ModelSummary]:
        """The models that need attention."""
        return summaries_of([one for one in self.standings if one.state in NEED_ATTENTION][:_MOST_TROUBLED])

    @cached_property
    def burning(self) -> list[tuple[Objective, Burning]]:
        """The rules by which an alert about an objective begins or goes on."""
        found = objectives()
        series = series_of(found, self.timestamp)
        return [
            (one, rule)
            for one in found
            for rule in windows(series[one.pk], self.timestamp, one.percent)
            if rule.goes_on
        ]

    @cached_property
    def pending(self) -> dict[str, dict[int, int]]:
        """The highest number of pending requests of each model in each FINE seconds of the last minutes, by its time, on the
        servers of production together."""
        found: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        since = int(self.timestamp) - QUEUE_S
        rows = MetricSample.objects.filter(of_production("server__"), resolution=FINE, at__gte=since)
        for name, at, data in rows.exclude(model_name="").values_list("model_name", "at", "data"):
            found[name][at] += decode(data).pending
        return found

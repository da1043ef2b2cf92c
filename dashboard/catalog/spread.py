"""What the servers of production report of models, and on how many of them a model serves what it should serve there.

Only servers count that answer and that `watch` drives: one that is away, or is told to end, holds no model back. While there is
none, the last reports of all servers count.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from django.db.models import Count, Q, QuerySet

from dashboard.models import Deployment, Model, ModelState, ModelSync, Release, Server
from dashboard.models.deployment import OPEN
from dashboard.models.environment import PRODUCTION
from dashboard.servers.selectors import driven_servers, of_production
from dashboard.servers.wanted import Wishes
from dashboard.shared.choices import version_word

SERVING = ("ready", "asleep")
_WORD = ("state", "condition", "failed")  # the parameters of version_word


class Report(NamedTuple):
    """A report of one version, which `servers` servers make alike. word: the result of choices.version_word."""

    version: int
    state: str
    word: str
    reason: str
    servers: int = 1


class Spread(NamedTuple):
    """On how many servers a model serves what it should there, of those that answer and should serve it."""

    serving: int = 0
    servers: int = 0

    @property
    def partial(self) -> bool:
        """Whether it serves on some of them only."""
        return 0 < self.serving < self.servers

    @property
    def in_words(self) -> str:
        """Where it serves, if that is on some servers only, else ""."""
        return f"on {self.serving} of {self.servers} servers" if self.partial else ""


class Reports:
    """What the servers report of some models, or of all, read when this is made. reports: by the model's name. errors: why
    `watch` could not load or unload a model, by its id."""

    def __init__(self, models: Collection[Model] | None = None) -> None:
        self._servers = list(driven_servers())
        there = Q(server__in=[one.pk for one in self._servers]) if self._servers else of_production("server__")
        states, syncs = ModelState.objects.filter(there).order_by(), ModelSync.objects.filter(there).exclude(error="")
        if models is not None:
            states = states.filter(model_name__in=[model.name for model in models])
            syncs = syncs.filter(model__in=models)
        self.reports = _alike(states)
        self.errors = self._errors(syncs.order_by("server__name").values_list("model_id", "server__name", "error"))
        self._deployed = _deployed(self._servers)

    def _errors(self, rows: Iterable[tuple[int, str, str]]) -> dict[int, str]:
        """Return the first error of each model. Of several servers, it names those that have one."""
        found: dict[int, list[tuple[str, str]]] = defaultdict(list)
        for model, server, error in rows:
            found[model].append((server, error))
        several = len(self._servers) > 1
        return {model: (_where(told) if several else "") + told[0][1] for model, told in found.items()}

    def spread(self, model_id: int, name: str, wanted: Collection[int]) -> Spread:
        """Return the Spread of a model. wanted: the versions that each server should serve, if no deployment is under way."""
        if model_id in self._deployed:
            return self._deployed[model_id]
        serving = dict.fromkeys(wanted, 0)
        for report in self.reports.get(name, ()):
            if report.word in SERVING and report.version in serving:
                serving[report.version] += report.servers
        return Spread(min(serving.values()), len(self._servers)) if self._servers and serving else Spread()


def _alike(states: QuerySet[ModelState]) -> dict[str, list[Report]]:
    """Return the reports by the model's name. What several servers say alike is read once."""
    found = defaultdict(list)
    rows = states.values_list("model_name", "version", "reason", *_WORD).annotate(Count("pk"))
    for name, version, reason, state, condition, failed, number in rows:
        found[name].append(Report(version, state, version_word(state, condition, failed), reason, number))
    return found


def _where(told: Sequence[tuple[str, str]]) -> str:
    """Return on which servers there is an error: the first by name, and how many more."""
    more = f" and {len(told) - 1} more" if len(told) > 1 else ""
    return f"on {told[0][0]}{more}: "


def _deployed(servers: Sequence[Server]) -> dict[int, Spread]:
    """Return the Spread of each model that a deployment brings to production, by its id. A server that the deployment has not
    reached should serve what was wanted before."""
    under_way = Deployment.objects.filter(environment__name=PRODUCTION, state__in=OPEN)
    names = dict(under_way.values_list("model_id", "model__name")) if len(servers) > 1 else {}
    if not names:
        return {}
    newest = Release.objects.filter(model__in=names, continues=None).order_by("number")
    of_models = dict(newest.values_list("model_id", "pk"))
    wishes = Wishes(names)
    wanted = [
        (server.pk, one.model_id, one.release or of_models.get(one.model_id))
        for server in servers
        for one in wishes.of(server)
        if one.loaded
    ]
    versions = dict(Release.objects.filter(pk__in={release for *_, release in wanted}).values_list("pk", "versions"))
    told = ModelState.objects.filter(server__in=[one.pk for one in servers], model_name__in=names.values())
    serving = {
        (server, name, version)
        for server, name, version, *state in told.values_list("server", "model_name", "version", *_WORD)
        if version_word(*state) in SERVING
    }
    found = dict.fromkeys(names, Spread())
    for server, model, release in wanted:
        if release is not None and (numbers := versions.get(release)):
            serves = all((server, names[model], number) in serving for number in numbers)
            found[model] = Spread(found[model].serving + serves, found[model].servers + 1)
    return found

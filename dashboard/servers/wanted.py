"""What a server should serve: the wanted set of its environment, or the release of a deployment that has reached it.
Only reads; the rooms `fleet` and `deployments` write."""

from dataclasses import dataclass
from typing import NamedTuple

from django.db.models import F, IntegerField, Value

from dashboard.models import DeploymentServer, Model, Server, ServerEnvironment, WantedRelease
from dashboard.models.deployment import OPEN, UNREACHED
from dashboard.models.environment import PRODUCTION
from dashboard.shared.choices import DesiredState


class Wanted(NamedTuple):
    """A model of the dashboard on one server. release: the id of the release that is wanted there, None for the newest."""

    model_id: int
    name: str
    loaded: bool
    generation: int
    release: int | None


def wanted_models(server: Server, model_id: int | None = None) -> list[Wanted]:
    """Return every model, or one, with whether it should be loaded on a server; [] if the server is only observed.

    The generation rises with each change of the model, and with each change of the environment's wish.
    """
    if not server.driven:
        return []
    everything = server.environment is None or server.environment.everything
    wished = {model: (release, generation) for _, model, release, generation in _wishes(server)}
    models = Model.objects.all() if model_id is None else Model.objects.filter(pk=model_id)
    found = []
    for pk, name, state, generation in models.values_list("pk", "name", "desired_state", "generation"):
        release, more = wished.get(pk, (None, 0))
        loaded = state == DesiredState.LOADED if everything else pk in wished
        found.append(Wanted(pk, name, loaded, generation + more, release))
    return found


def _wishes(server: Server) -> list[tuple[int, int, int | None, int]]:
    """Return the wishes for a server: rank, model, release and generation; of two for one model, the last counts."""
    if server.environment_id is None:
        return []
    reached = DeploymentServer.objects.filter(server=server.pk, deployment__state__in=OPEN).exclude(
        state__in=UNREACHED
    )
    rows = WantedRelease.objects.filter(environment=server.environment_id).order_by()
    both = rows.annotate(rank=Value(0, IntegerField())).values_list("rank", "model", "release", "generation")
    of_deployments = reached.order_by().annotate(rank=Value(1, IntegerField()))
    more = of_deployments.values_list("rank", F("deployment__model"), F("deployment__release"), "generation")
    return sorted(both.union(more, all=True), key=lambda row: row[0])


@dataclass(frozen=True, slots=True)
class ProductionWants:
    """What production wants. everything: whether it wants each loaded model. releases: the ids of the releases that it names, by
    the model's id; None for the newest."""

    everything: bool
    releases: dict[int, int | None]

    def loaded(self, model_id: int, desired: str) -> bool:
        """Return whether a model should serve there. desired: its desired state."""
        return desired == DesiredState.LOADED if self.everything else model_id in self.releases


def production_wants() -> ProductionWants:
    """Return what the first server of production should serve; of the wanted set if there is no server."""
    environment = ServerEnvironment.objects.filter(name=PRODUCTION).first()
    if environment is None:
        return ProductionWants(True, {})
    server = environment.servers.first() or Server(environment=environment)
    return ProductionWants(environment.everything, {model: release for _, model, release, _ in _wishes(server)})


def wanted_generation(server: Server, model_id: int) -> int | None:
    """Return the present generation of a model on a server, or None if it is not wanted or unwanted there."""
    found = wanted_models(server, model_id)
    return found[0].generation if found else None

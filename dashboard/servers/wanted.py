"""What a server should serve: the wanted set of its environment, or the release of a deployment that has reached it.
Only reads; the rooms `fleet` and `deployments` write."""

from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from django.db.models import Exists, F, IntegerField, OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce

from dashboard.models import DeploymentServer, Model, Server, ServerEnvironment, WantedRelease
from dashboard.models.deployment import OPEN, UNREACHED
from dashboard.models.environment import PRODUCTION
from dashboard.shared.choices import DesiredState

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations


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
    reached = DeploymentServer.objects.filter(server=server.pk, deployment__state__in=OPEN).exclude(state__in=UNREACHED)
    rows = WantedRelease.objects.filter(environment=server.environment_id).order_by()
    both = rows.annotate(rank=Value(0, IntegerField())).values_list("rank", "model", "release", "generation")
    of_deployments = reached.order_by().annotate(rank=Value(1, IntegerField()))
    more = of_deployments.values_list("rank", F("deployment__model"), F("deployment__release"), "generation")
    return sorted(both.union(more, all=True), key=lambda row: row[0])


class InProduction(TypedDict):
    """What production wants of a model. everything: whether that is each loaded model. wished: whether it names this one.
    pinned: the id of the release that it names, None for the newest."""

    everything: bool
    wished: bool
    pinned: int | None


def with_production(models: QuerySet[Model]) -> "QuerySet[WithAnnotations[Model, InProduction]]":
    """Annotate models with what the first server of production should serve, in the same query."""
    first = Server.objects.filter(environment__name=PRODUCTION).values("pk")[:1]
    reached = DeploymentServer.objects.filter(server=Subquery(first), deployment__state__in=OPEN).exclude(
        state__in=UNREACHED
    )
    reached = reached.filter(deployment__model=OuterRef("pk")).order_by()
    wish = WantedRelease.objects.filter(environment__name=PRODUCTION, model=OuterRef("pk")).order_by()
    everything = ServerEnvironment.objects.filter(name=PRODUCTION).values("everything")[:1]
    return models.annotate(
        everything=Coalesce(Subquery(everything), True),
        wished=Exists(reached) | Exists(wish),
        pinned=Coalesce(_begun(reached, "deployment__release"), _begun(wish, "release")),
    )


def _begun(rows: QuerySet[Any], release: str) -> Subquery:
    """Return the id of the release that these rows name; of a further text, that of the release."""
    return Subquery(rows.values(begun=Coalesce(f"{release}__continues", release))[:1])


def should_load(*, desired: str, everything: bool, wished: bool) -> bool:
    """Return whether production should serve a model. desired: its desired state. The others: as in InProduction."""
    return desired == DesiredState.LOADED if everything else wished


def wanted_generation(server: Server, model_id: int) -> int | None:
    """Return the present generation of a model on a server, or None if it is not wanted or unwanted there."""
    found = wanted_models(server, model_id)
    return found[0].generation if found else None

"""What a server should serve: the wanted set of its environment, or the release of a deployment that has reached it.
Only reads; the rooms `fleet` and `deployments` write."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from functools import cached_property
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


class _Wish(NamedTuple):
    """A row of a wanted set, or of a deployment that has reached a server."""

    model: int
    release: int | None
    generation: int


_ModelRow = tuple[int, str, str, int]  # id, name, desired state, generation
_WISH = ("model", "release", "generation")
_DEPLOYED = ("deployment__model", "deployment__release", "generation")


class Wishes:
    """What every server should serve, read at one moment in three queries, however many servers there are. models: the ids of
    the models that it is about, None for all."""

    def __init__(self, models: Collection[int] | None = None) -> None:
        self._models = _models(Model.objects.all() if models is None else Model.objects.filter(pk__in=models))
        self._of_environments: dict[int, list[_Wish]] = defaultdict(list)
        self._of_servers: dict[int, list[_Wish]] = defaultdict(list)
        for environment, *wish in _of_environments().values_list("environment", *_WISH):
            self._of_environments[environment].append(_Wish(*wish))
        for server, *wish in _of_deployments().values_list("server", *_DEPLOYED):
            self._of_servers[server].append(_Wish(*wish))
        self._common: dict[tuple[int | None, bool], list[Wanted]] = {}

    def __eq__(self, other: object) -> bool:
        """Return whether every server should serve the same as by another reading."""
        if not isinstance(other, Wishes):
            return NotImplemented
        mine, others = ((one._models, one._of_environments, one._of_servers) for one in (self, other))
        return mine == others

    __hash__ = None  # type: ignore[assignment]

    def of(self, server: Server) -> list[Wanted]:
        """Return what `wanted_models` returns. Servers of one environment share a list, which callers do not change."""
        if not server.driven:
            return []
        own, everything = self._of_servers.get(server.pk, []), _everything(server)
        common = self._of_environments.get(server.environment_id, []) if server.environment_id is not None else []
        if own:
            return _wanted(self._models, [*common, *own], everything)
        key = (server.environment_id, everything)
        if key not in self._common:
            self._common[key] = _wanted(self._models, common, everything)
        return self._common[key]

    def generation(self, server: Server, model_id: int) -> int | None:
        """Return what `wanted_generation` returns."""
        return next((one.generation for one in self.of(server) if one.model_id == model_id), None)

    @cached_property
    def names(self) -> set[str]:
        """The names of all models."""
        return {row[1] for row in self._models}

    @property
    def releases(self) -> set[int]:
        """The ids of the releases that are wanted by name."""
        wishes = (*self._of_environments.values(), *self._of_servers.values())
        return {one.release for several in wishes for one in several if one.release is not None}


def wanted_models(server: Server, model_id: int | None = None) -> list[Wanted]:
    """Return every model, or one, with whether it should be loaded on a server; [] if the server is only observed.

    The generation rises with each change of the model, and with each change of the environment's wish.
    """
    if not server.driven:
        return []
    models = _models(Model.objects.all() if model_id is None else Model.objects.filter(pk=model_id))
    return _wanted(models, _wishes(server), _everything(server))


def _wanted(models: "list[_ModelRow]", wishes: "Iterable[_Wish]", everything: bool) -> list[Wanted]:
    """Return what is wanted of these models; of two wishes for one model, the last counts."""
    wished = {one.model: one for one in wishes}
    found = []
    for pk, name, state, generation in models:
        wish = wished.get(pk)
        loaded = state == DesiredState.LOADED if everything else wish is not None
        release, more = (wish.release, wish.generation) if wish is not None else (None, 0)
        found.append(Wanted(pk, name, loaded, generation + more, release))
    return found


def _everything(server: Server) -> bool:
    return server.environment is None or server.environment.everything


def _models(rows: QuerySet[Model]) -> "list[_ModelRow]":
    return list(rows.values_list("pk", "name", "desired_state", "generation"))


def _of_environments() -> QuerySet[WantedRelease]:
    return WantedRelease.objects.order_by()


def _of_deployments() -> QuerySet[DeploymentServer]:
    """Return the servers that deployments under way have reached."""
    reached = DeploymentServer.objects.filter(deployment__state__in=OPEN).exclude(state__in=UNREACHED)
    return reached.order_by()


def _wishes(server: Server) -> "list[_Wish]":
    """Return the wishes for a server, those of deployments last."""
    if server.environment_id is None:
        return []
    rows = _of_environments().filter(environment=server.environment_id)
    both = rows.annotate(rank=Value(0, IntegerField())).values_list("rank", *_WISH)
    of_deployments = _of_deployments().filter(server=server.pk).annotate(rank=Value(1, IntegerField()))
    more = of_deployments.values_list("rank", *(F(name) for name in _DEPLOYED))
    return [_Wish(*row[1:]) for row in sorted(both.union(more, all=True), key=lambda row: row[0])]


class InProduction(TypedDict):
    """What production wants of a model. everything: whether that is each loaded model. wished: whether it names this one.
    pinned: the id of the release that it names, None for the newest."""

    everything: bool
    wished: bool
    pinned: int | None


def with_production(models: QuerySet[Model]) -> "QuerySet[WithAnnotations[Model, InProduction]]":
    """Annotate models with what the first server of production should serve, in the same query."""
    first = Server.objects.filter(environment__name=PRODUCTION).values("pk")[:1]
    reached = _of_deployments().filter(server=Subquery(first), deployment__model=OuterRef("pk"))
    wish = _of_environments().filter(environment__name=PRODUCTION, model=OuterRef("pk"))
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

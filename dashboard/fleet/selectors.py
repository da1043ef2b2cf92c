"""Reads of environments, their servers, and what they want."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Prefetch, QuerySet

from dashboard.metrics.server_loads import ServerLoad, server_loads
from dashboard.models import Deployment, DeploymentPolicy, Model, ModelState, Server, ServerEnvironment, WantedRelease
from dashboard.models.deployment import OPEN
from dashboard.servers.holdings import said_of
from dashboard.servers.selectors import server_get, servers
from dashboard.servers.wanted import wanted_models
from dashboard.shared.choices import ModelStatus
from dashboard.shared.exceptions import Conflict, NotFound
from dashboard.shared.sealing import unseal
from repository.core.condition import Condition


@dataclass(frozen=True, slots=True)
class ServerStanding:
    """A server, and how far it is. wanted, served: numbers of models. held: a sentence about its repository, "" if bundled.
    load: what it did in the last minute, beside the others."""

    server: Server
    wanted: int
    served: int
    held: str
    load: ServerLoad


def environments() -> QuerySet[ServerEnvironment]:
    """Return the environments with their servers, production first."""
    return ServerEnvironment.objects.prefetch_related(Prefetch("servers", queryset=servers()))


def environment_get(name: str) -> ServerEnvironment:
    """Return an environment. Raises NotFound if there is none of that name."""
    try:
        return environments().get(name=name)
    except ServerEnvironment.DoesNotExist:
        raise NotFound(f"there is no environment named '{name[:40]}'") from None


def wishes(environment: ServerEnvironment) -> QuerySet[WantedRelease]:
    """Return the rows of an environment's wanted set."""
    return environment.wanted.select_related("model", "release").defer("release__text", "model__fingerprint")


def deploying(environment: ServerEnvironment) -> QuerySet[Deployment]:
    """Return the deployments of an environment that are not over."""
    rows = environment.deployments.filter(state__in=OPEN).select_related("model", "release")
    return rows.defer("model__fingerprint", "release__text")


def governed(environment: ServerEnvironment) -> bool:
    """Return whether a policy asks something of the releases of an environment."""
    return DeploymentPolicy.objects.filter(environment=environment).exists()


def member_get(environment: str, name: str) -> Server:
    """Return a server of an environment. Raises NotFound."""
    found = server_get(name)
    if found.environment is None or found.environment.name != environment:
        raise NotFound(f"environment {environment[:40]} has no server named '{name[:64]}'")
    return found


def leads_to(environment: ServerEnvironment) -> list[str]:
    """Return the names of the environments whose policies take releases from this one."""
    return list(ServerEnvironment.objects.filter(policy__source=environment).values_list("name", flat=True))


def standings(environment: ServerEnvironment, some: Sequence[Server] | None = None) -> list[ServerStanding]:
    """Return how far each server of an environment is, or some of its servers."""
    beside = list(environment.servers.all())
    found = beside if some is None else list(some)
    ready: dict[int, set[str]] = {}
    serves = ModelState.objects.filter(server__in=found).values_list("server", "model_name", "state", "condition")
    for pk, name, state, condition in serves:
        if state == ModelStatus.READY or condition == Condition.ASLEEP:
            ready.setdefault(pk, set()).add(name)
    for server in found:
        server.environment = environment
    # Servers of one environment want the same, except while a deployment brings a model that is new there.
    stay = [server for server in found if not server.leaving]
    every = stay if deploying(environment).filter(earlier=None).exists() else stay[:1]
    wanted = {server.pk: {one.name for one in wanted_models(server) if one.loaded} for server in every}
    same = wanted[stay[0].pk] if stay else set()
    loads = server_loads(found, beside=beside)
    return [
        ServerStanding(
            server,
            len(wanted.get(server.pk, same)),
            len(wanted.get(server.pk, same) & ready.get(server.pk, set())),
            said_of(server),
            loads[server.pk],
        )
        for server in found
    ]


def key_trouble(environment: ServerEnvironment) -> str:
    """Return why the stored control key cannot be read; "" if it can."""
    try:
        unseal(environment.control_key)
    except Conflict as error:
        return error.message
    return ""


def unwanted(environment: ServerEnvironment) -> QuerySet[Model]:
    """Return the models that the environment's wanted set does not name."""
    return Model.objects.exclude(wanted_in__environment=environment).order_by("name")

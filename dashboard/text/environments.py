"""Environments, their listed servers, what they ask of releases, and the models that each wants in its newest release.

The secrets of an environment stay where they are. A wish for one release is no text, because another installation numbers
its releases itself. A server that `up` lists, or that a name or service leads to, is none either.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from dashboard.access.authorisation import Actor
from dashboard.deployments import policies
from dashboard.fleet import services
from dashboard.fleet.selectors import environment_get
from dashboard.models import DeploymentPolicy, Server, ServerEnvironment, WantedRelease
from dashboard.models.environment import CONTROL_HEADER, PRODUCTION
from dashboard.shared.exceptions import NotFound
from dashboard.text.kinds import INSTALLATION, Change, Kind, Secrets, administers
from dashboard.text.shapes import Record, Table

_PORTS = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
_TEXTS = ("kubernetes_service", "kubernetes_selector", "kubernetes_address", "kubernetes_ca_file", *services.FILES)
_BOUNDS = {"replicas_min": 1, "replicas_max": 0}
_SETTINGS: dict[str, object] = {
    "driven": True,
    "everything": False,
    "dns_name": "",
    **_PORTS,
    "tls": False,
    "control_header": CONTROL_HEADER,
    **dict.fromkeys(_TEXTS, ""),
    **_BOUNDS,
}
# Production is there from the beginning, and wants everything.
_UNTOUCHED = {**_SETTINGS, "everything": True}


def _environments() -> Mapping[str, Any]:
    found = {one.name: {name: getattr(one, name) for name in _SETTINGS} for one in ServerEnvironment.objects.all()}
    if found.get(PRODUCTION) == _UNTOUCHED:
        del found[PRODUCTION]
    return {INSTALLATION: found}


def _write_environment(change: Change, actor: Actor, kept: Secrets) -> None:
    wanted = {**_SETTINGS, **(change.after or (_UNTOUCHED if change.key == PRODUCTION else {}))}
    if change.key != PRODUCTION and change.before is None:
        services.environment_create(name=change.key, actor=actor, **wanted)
        return
    environment = environment_get(change.key)
    if change.after is None and change.key != PRODUCTION:
        services.environment_delete(environment=environment, actor=actor)
    else:
        services.environment_update(environment=environment, actor=actor, **wanted)


ENVIRONMENTS = Kind(
    name="environments",
    one="environment",
    file="environments.yaml",
    shape=Table(
        Record(
            {
                "driven": bool,
                "everything": bool,
                "dns_name": str,
                **dict.fromkeys(_PORTS, int),
                "tls": bool,
                "control_header": str,
                **dict.fromkeys(_TEXTS, str),
                **dict.fromkeys(_BOUNDS, int),
            },
            _SETTINGS,
        )
    ),
    read=_environments,
    write=_write_environment,
    entries=True,
    sparse=True,
    rights=administers,
)


# -- servers -----------------------------------------------------------------------------------------------------------
def _servers() -> Mapping[str, Any]:
    rows = Server.objects.filter(bundled=False, named_at=None).select_related("environment")
    return {INSTALLATION: {row.name: _server(row) for row in rows}}


def _server(row: Server) -> dict[str, str]:
    environment = row.environment.name if row.environment else PRODUCTION
    addresses = {"address": row.http_url, "grpc": row.grpc_url, "metrics": row.metrics_url}
    return {"environment": environment, **addresses, "zone": row.zone}


def _write_server(change: Change, actor: Actor, kept: Secrets) -> None:
    row = Server.objects.filter(name=change.key).first()
    if change.after is None:
        if row is not None:  # it may have gone with its environment
            services.server_remove(server=row, actor=actor)
        return
    addresses = {name: change.after[name] for name in ("address", "grpc", "metrics")}
    if row is not None and not change.changed("environment"):
        services.server_update(server=row, actor=actor, **addresses)
    else:
        if row is not None:
            services.server_remove(server=row, actor=actor)
        environment = environment_get(change.after["environment"])
        row = services.server_new(environment=environment, name=change.key, **addresses)
        services.server_add(server=row, actor=actor)
    if row.zone != change.after.get("zone", ""):
        services.server_place(server=row, zone=change.after.get("zone", ""), actor=actor)


SERVERS = Kind(
    name="servers",
    one="server",
    file="servers.yaml",
    shape=Table(Record({"environment": str, "address": str, "grpc": str, "metrics": str, "zone": str}, {"zone": ""})),
    read=_servers,
    write=_write_server,
    entries=True,
    sparse=True,
    rights=administers,
)


# -- what each environment asks of a release ---------------------------------------------------------------------------
_ASKED: dict[str, object] = {
    "source": "",
    "golden": False,
    "budget": False,
    "approval": False,
    "freezes": [],
    "time_zone": "UTC",
}


def _policies() -> Mapping[str, Any]:
    rows = DeploymentPolicy.objects.select_related("environment", "source")
    return {INSTALLATION: {row.environment.name: _policy(row) for row in rows}}


def _policy(row: DeploymentPolicy) -> dict[str, object]:
    source = row.source.name if row.source is not None else ""
    return {name: source if name == "source" else getattr(row, name) for name in _ASKED}


def _write_policy(change: Change, actor: Actor, kept: Secrets) -> None:
    try:
        environment = environment_get(change.key)
        if change.after is None:
            policies.policy_remove(environment=environment, actor=actor)
            return
    except NotFound:
        if change.after is None:
            return  # it went with its environment
        raise
    asked: dict[str, Any] = {**_ASKED, **change.after}
    source = environment_get(asked["source"]) if asked["source"] else None
    policies.policy_set(environment=environment, actor=actor, **{**asked, "source": source})


DEPLOYMENT_POLICIES = Kind(
    name="deployment policies",
    one="deployment policy",
    file="deployment_policies.yaml",
    shape=Table(
        Record(
            {
                "source": str,
                **dict.fromkeys(("golden", "budget", "approval"), bool),
                "freezes": [Record({"days": [int], "start": str, "end": str})],
                "time_zone": str,
            },
            _ASKED,
        )
    ),
    read=_policies,
    write=_write_policy,
    entries=True,
    sparse=True,
    rights=administers,
)


# -- what each environment wants -----------------------------------------------------------------------------------------
def _wanted() -> Mapping[str, Any]:
    found: dict[str, list[str]] = defaultdict(list)
    rows = WantedRelease.objects.filter(release=None)
    for model, environment in rows.values_list("model__name", "environment__name"):
        found[model].append(environment)
    return found


def _write_wanted(change: Change, actor: Actor, kept: Secrets) -> None:
    environment = environment_get(change.after or change.before)
    if change.after is not None:
        services.wanted_set(environment=environment, model=change.model, actor=actor)
        return
    try:
        services.wanted_remove(environment=environment, model=change.model, actor=actor)
    except NotFound:
        return  # it went with its model or environment


WANTED = Kind(
    name="wanted models",
    one="environment",
    file="environments.yaml",
    shape=[str],
    read=_wanted,
    write=_write_wanted,
    of_model=True,
    entries=True,
    listed=True,
    sparse=True,
)

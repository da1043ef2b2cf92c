"""Records the servers to which the DNS name, Kubernetes service or labels of an environment lead: new ones as they appear, and
those that vanish."""

import ipaddress
import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from dashboard.models import Server, ServerEnvironment, ServerState
from dashboard.shared.changes import quietly

logger = logging.getLogger(__name__)

GONE = timedelta(seconds=60)  # a source that has not led to a server for so long does not lead to it any more
_NOTED = timedelta(seconds=10)
MOST_SERVERS = 1000  # of one environment


@dataclass(frozen=True, slots=True)
class Found:
    """A server to which a source leads. address: an IP address. name: of its pod, "" for a name of the address.

    ports: by the names http, grpc and metrics; the environment has those that are missing. leaving: it has been told to end.
    """

    address: str
    name: str = ""
    ports: tuple[tuple[str, int], ...] = ()
    zone: str = ""
    leaving: bool = False


def environments_with_source() -> list[ServerEnvironment]:
    """Return the environments whose servers are found."""
    return list(ServerEnvironment.objects.exclude(dns_name="", kubernetes_service="", kubernetes_selector=""))


def servers_found(*, environment_id: int, source: str, found: Collection[Found]) -> bool:
    """Record the servers to which a source leads now, and return whether this changed any.

    A server that was leaving is removed when its source does not lead to it any more, and another one after GONE: answers of
    DNS may name some of the servers only, and a service whose selector a person mistypes loses all at once.
    """
    now, changed = timezone.now(), False
    with transaction.atomic():
        environment = ServerEnvironment.objects.select_for_update().filter(pk=environment_id).first()
        if environment is None or environment.source != source:  # a person has changed or removed it meanwhile
            return False
        of_kubernetes = ("zone", "leaving") if environment.in_kubernetes else ()
        told = ("http_url", "grpc_url", "metrics_url", *of_kubernetes)
        known = {server.name: server for server in environment.servers.exclude(named_at=None)}
        noted: list[int] = []
        for new in _rows(environment, found):
            server = known.pop(new.name, None)
            if server is None:
                new.named_at = now
                new.save(force_insert=True)
                ServerState.objects.create(server=new)
                logger.info("%s leads to a new server: %s", source, new.name)
                changed = True
                continue
            if different := {name for name in told if getattr(server, name) != getattr(new, name)}:
                Server.objects.filter(pk=server.pk).update(**{name: getattr(new, name) for name in different})
                changed = True
            if server.named_at is None or now - server.named_at > _NOTED:
                noted.append(server.pk)
        with quietly():
            Server.objects.filter(pk__in=noted).update(named_at=now)
        for gone in known.values():
            if gone.leaving or (gone.named_at is not None and now - gone.named_at > GONE):
                logger.info("%s does not lead to server %s any more", source, gone.name)
                gone.delete()
                changed = True
        if environment.lookup_error:
            ServerEnvironment.objects.filter(pk=environment_id).update(lookup_error="")
    return changed


def lookup_failed(*, environment_id: int, error: str) -> None:
    """Record why the servers could not be looked up. They stay: DNS or Kubernetes may be down while they serve."""
    rows = ServerEnvironment.objects.filter(pk=environment_id).exclude(lookup_error=error)
    rows.update(lookup_error=error[:500])


def _rows(environment: ServerEnvironment, found: Collection[Found]) -> list[Server]:
    """Return the rows of servers that were found, not saved. A pod's name that is taken gets the environment's before it."""
    ordered = sorted(found, key=lambda one: (one.name, one.address))[:MOST_SERVERS]
    names = {one: _name(environment, one) for one in ordered}
    others = Server.objects.filter(~Q(environment=environment) | Q(named_at=None), name__in=names.values())
    taken = set(others.values_list("name", flat=True))
    rows = []
    for one, name in names.items():
        host = f"[{one.address}]" if ":" in one.address else one.address
        scheme = "https" if environment.tls else "http"
        ports = {part: getattr(environment, f"{part}_port") for part in ("http", "grpc", "metrics")} | dict(one.ports)
        rows.append(
            Server(
                name=f"{environment.name}-{name}"[-64:].lstrip("-") if name in taken else name,
                environment=environment,
                http_url=f"{scheme}://{host}:{ports['http']}",
                grpc_url=f"{host}:{ports['grpc']}",
                metrics_url=f"{scheme}://{host}:{ports['metrics']}",
                zone=one.zone,
                leaving=one.leaving,
            )
        )
    return rows


def _name(environment: ServerEnvironment, one: Found) -> str:
    if one.name:  # pods of one owner differ at the end
        return re.sub(r"[^A-Za-z0-9_-]", "-", one.name)[-64:].lstrip("-")
    number = ipaddress.ip_address(one.address).exploded.replace(".", "-").replace(":", "")
    return f"{environment.name}-{number}"[:64]

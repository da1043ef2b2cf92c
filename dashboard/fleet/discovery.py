"""Finds the servers to which the DNS name of an environment leads: new ones as they appear, and those that vanish."""

import ipaddress
import logging
from collections.abc import Collection
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from dashboard.models import Server, ServerEnvironment, ServerState
from dashboard.shared.changes import quietly

logger = logging.getLogger(__name__)

GONE = timedelta(seconds=60)  # a name that has not led to a server for so long does not lead to it any more
_NOTED = timedelta(seconds=10)
MOST_SERVERS = 1000  # of one name


def environments_named() -> list[tuple[int, str]]:
    """Return the id and the DNS name of each environment whose servers are found by name."""
    return list(ServerEnvironment.objects.exclude(dns_name="").values_list("pk", "dns_name"))


def servers_found(*, environment_id: int, dns_name: str, addresses: Collection[str]) -> None:
    """Record the addresses to which the name leads now. Servers to which it has not led for GONE are removed.

    Answers of DNS may name some of the servers only, so one answer without a server removes nothing.
    """
    now = timezone.now()
    with transaction.atomic():
        environment = ServerEnvironment.objects.select_for_update().filter(pk=environment_id, dns_name=dns_name).first()
        if environment is None:  # a person has changed or removed it meanwhile
            return
        known = {server.http_url: server for server in environment.servers.exclude(named_at=None)}
        for address in sorted(addresses)[:MOST_SERVERS]:
            new = _server(environment, address)
            server = known.pop(new.http_url, None)
            if server is None:
                new.named_at = now
                new.save(force_insert=True)
                ServerState.objects.create(server=new)
                logger.info("the name %s leads to a new server: %s", dns_name, new.name)
            elif server.named_at is None or now - server.named_at > _NOTED:
                with quietly():
                    Server.objects.filter(pk=server.pk).update(named_at=now)
        for gone in known.values():
            if gone.named_at is not None and now - gone.named_at > GONE:
                logger.info("the name %s does not lead to server %s any more", dns_name, gone.name)
                gone.delete()
        if environment.lookup_error:
            ServerEnvironment.objects.filter(pk=environment_id).update(lookup_error="")


def lookup_failed(*, environment_id: int, error: str) -> None:
    """Record why a name led nowhere. Its servers stay: DNS may be down while they serve."""
    rows = ServerEnvironment.objects.filter(pk=environment_id).exclude(lookup_error=error)
    rows.update(lookup_error=error[:500])


def _server(environment: ServerEnvironment, address: str) -> Server:
    """Return the row of the server at an IP address, not saved."""
    host = f"[{address}]" if ":" in address else address
    scheme = "https" if environment.tls else "http"
    name = f"{environment.name}-{ipaddress.ip_address(address).exploded.replace('.', '-').replace(':', '')}"
    return Server(
        name=name[:64],
        environment=environment,
        http_url=f"{scheme}://{host}:{environment.http_port}",
        grpc_url=f"{host}:{environment.grpc_port}",
        metrics_url=f"{scheme}://{host}:{environment.metrics_port}",
    )

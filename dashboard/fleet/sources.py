"""Looks up the servers of an environment by its source: a DNS name, a Kubernetes service, or labels of pods."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable

from asgiref.sync import async_to_sync

from dashboard.fleet.checks import Check
from dashboard.fleet.discovery import Found
from dashboard.fleet.kubernetes import pods_of
from dashboard.models import ServerEnvironment
from dashboard.shared.exceptions import DashboardError, Invalid, Unavailable

ANSWER_S = 5.0  # of DNS
_NAMED = 20  # servers that a check names

Lookup = Callable[[str], Awaitable[set[str]]]


async def addresses_of(name: str) -> set[str]:
    """Return the IP addresses of a name. Raises OSError if DNS knows none."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    numbers = {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}
    # Kubernetes and most others list a server once for each family; IPv4 is enough where there is any.
    return {str(one) for one in numbers if one.version == 4} or {str(one) for one in numbers}


async def servers_of(environment: ServerEnvironment, lookup: Lookup = addresses_of) -> list[Found]:
    """Return the servers to which the source of an environment leads now. Raises DashboardError with the reason if none."""
    if environment.in_kubernetes:
        return await pods_of(environment)
    try:
        async with asyncio.timeout(ANSWER_S):
            return [Found(address) for address in sorted(await lookup(environment.dns_name))]
    except (OSError, UnicodeError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or "DNS did not answer in time"
        raise Unavailable(f"the name {environment.dns_name} was not found: {reason.lower()}") from None


def check_source(environment: ServerEnvironment) -> Check:
    """Look the servers of an environment up, saved or not, and change nothing. Takes up to 5 s."""
    if not environment.source:
        raise Invalid.at(
            "dns_name",
            "neither a DNS name nor a service or labels in Kubernetes are given, so there is nothing to look up",
        )
    try:
        found = async_to_sync(servers_of)(environment)
    except DashboardError as error:
        return Check(problems=[error.message])
    told = [" ".join(filter(None, (one.name, one.address, one.zone, "(ending)" * one.leaving))) for one in found]
    more = f" and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    servers = f"{len(told)} server{'s' * (len(told) != 1)}"
    kinds = {"kubernetes_service": "The Kubernetes service", "kubernetes_selector": "The selector of pods"}
    kind = next((said for name, said in kinds.items() if getattr(environment, name)), "The name")
    return Check(
        said=f"{kind} {environment.source} leads to {servers}{': ' * bool(told)}{', '.join(told[:_NAMED])}{more}."
    )

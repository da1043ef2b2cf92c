"""Looks up the DNS names of environments, so that their servers are watched as they appear."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections

from dashboard.fleet.discovery import environments_named, lookup_failed, servers_found

logger = logging.getLogger(__name__)

LOOKUP_S = 5.0

Lookup = Callable[[str], Awaitable[set[str]]]


async def addresses_of(name: str) -> set[str]:
    """Return the IP addresses of a name. Raises OSError if DNS knows none."""
    found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    numbers = {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}
    # Kubernetes and most others list a server once for each family; IPv4 is enough where there is any.
    return {str(one) for one in numbers if one.version == 4} or {str(one) for one in numbers}


async def discover(lookup: Lookup = addresses_of) -> None:
    """Look all names up every LOOKUP_S, until cancelled. A name that hangs delays no other one."""
    under_way: dict[int, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                for pk, name in await sync_to_async(environments_named)():
                    if pk not in under_way or under_way[pk].done():
                        under_way[pk] = group.create_task(_look_up(pk, name, lookup))
            except Error as error:
                logger.error("the database did not answer (%s); the names are looked up later", error)
                await sync_to_async(close_old_connections)()
            await asyncio.sleep(LOOKUP_S)


async def _look_up(pk: int, name: str, lookup: Lookup) -> None:
    try:
        try:
            async with asyncio.timeout(LOOKUP_S):
                found = await lookup(name)
        except (OSError, UnicodeError, TimeoutError) as error:
            reason = getattr(error, "strerror", None) or "DNS did not answer in time"
            said = f"the name {name} was not found: {reason.lower()}; the servers that it led to stay"
            await sync_to_async(lookup_failed)(environment_id=pk, error=said)
        else:
            await sync_to_async(servers_found)(environment_id=pk, dns_name=name, addresses=found)
    except Error as error:
        logger.error("the servers of %s were not recorded (%s)", name, error)
        await sync_to_async(close_old_connections)()

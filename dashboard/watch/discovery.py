"""Looks up the servers of environments, by DNS or in Kubernetes, so that they are watched as they appear, and their pods."""

import asyncio
import logging

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections

from dashboard.fleet.discovery import environments_with_source, lookup_failed, servers_found
from dashboard.fleet.sources import Lookup, addresses_of, servers_of
from dashboard.kubernetes.look import look_at
from dashboard.kubernetes.selectors import last_workloads
from dashboard.kubernetes.services import look_failed, look_record
from dashboard.models import ServerEnvironment
from dashboard.shared.exceptions import DashboardError

logger = logging.getLogger(__name__)

LOOKUP_S = 2.0
LOOK_S = 5.0  # from the end of one look at the pods of an environment to the next


async def discover(changed: asyncio.Event, lookup: Lookup = addresses_of) -> None:
    """Look all environments up every LOOKUP_S, until cancelled. One that hangs delays no other one.

    changed: is set when a server has come, gone or changed.
    """
    under_way: dict[int, asyncio.Task[None]] = {}
    looks: dict[int, asyncio.Task[None]] = {}
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                for one in await sync_to_async(environments_with_source)():
                    if one.pk not in under_way or under_way[one.pk].done():
                        under_way[one.pk] = group.create_task(_look_up(one, changed, lookup))
                    if one.in_kubernetes and (one.pk not in looks or looks[one.pk].done()):
                        looks[one.pk] = group.create_task(_look_at(one))
            except Error as error:
                logger.error("the database did not answer (%s); servers are looked up later", error)
                await sync_to_async(close_old_connections)()
            await asyncio.sleep(LOOKUP_S)


async def _look_up(environment: ServerEnvironment, changed: asyncio.Event, lookup: Lookup) -> None:
    try:
        try:
            found = await servers_of(environment, lookup)
        except DashboardError as error:
            said = f"{error.message}; the servers that it led to stay"
            await sync_to_async(lookup_failed)(environment_id=environment.pk, error=said)
        else:
            record = sync_to_async(servers_found)
            if await record(environment_id=environment.pk, source=environment.source, found=found):
                changed.set()
    except Error as error:
        logger.error("the servers of %s were not recorded (%s)", environment.source, error)
        await sync_to_async(close_old_connections)()


async def _look_at(environment: ServerEnvironment) -> None:
    """Look at the pods of an environment, keep what was seen, and rest. Its servers are looked up meanwhile."""
    try:
        try:
            before = await sync_to_async(last_workloads)(environment)
            look = await look_at(environment, before)
        except DashboardError as error:
            failed = sync_to_async(look_failed)
            await failed(environment_id=environment.pk, source=environment.source, error=error.message)
        else:
            record = sync_to_async(look_record)
            await record(environment_id=environment.pk, source=environment.source, look=look)
    except Error as error:
        logger.error("what was seen of %s was not recorded (%s)", environment.source, error)
        await sync_to_async(close_old_connections)()
    await asyncio.sleep(LOOK_S)

"""Runs all parts of `watch` until it is stopped."""

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from time import monotonic

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections, connection

from dashboard.metrics.feed import FeedReader
from dashboard.models import Server
from dashboard.models.environment import PRODUCTION
from dashboard.postgresql import relay
from dashboard.servers import server_state
from dashboard.servers.client import AsyncServerClient
from dashboard.servers.selectors import servers
from dashboard.shared import heartbeat
from dashboard.shared.exceptions import DashboardError
from dashboard.shared.fence import Fence, fenced_by, refuse_late_writes
from dashboard.watch.collector import Collector
from dashboard.watch.discovery import discover
from dashboard.watch.lease import FOLLOW_S, LEASE_S, RENEW_S, Lease
from dashboard.watch.noted_watch import NotedWatch
from dashboard.watch.periodic import Result, periodic_tasks, run_periodically
from dashboard.watch.reconciler import Reconciler
from dashboard.watch.rollout_watch import RolloutWatch
from dashboard.watch.together import Together

logger = logging.getLogger(__name__)

SERVERS_S = 5.0
LONGEST_PAUSE_S = 60.0

_LEASE_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lease")


async def watch() -> None:
    """Run until SIGINT or SIGTERM. If a part fails, the whole process exits, and `up` starts it again."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    relay.begin()
    refuse_late_writes()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    parts = [asyncio.create_task(lead_or_follow(Lease())), asyncio.create_task(give_heartbeats())]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *parts], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
    heartbeat.forget()
    for part in parts:
        if part in done:
            part.result()


async def lead_or_follow(lease: Lease) -> None:
    """Do the watcher's work whenever this process has the lease, until cancelled. What it remembers ends with the lease."""
    said = ""
    try:
        while True:
            began = monotonic()
            try:
                leads = await on_lease_thread(lease.take)
            except Error as error:
                leads = False
                if str(error) != said:
                    logger.error("the database did not answer (%s); this watcher follows", error)
                said = str(error)
            if not leads:
                await asyncio.sleep(FOLLOW_S)
                continue
            said = ""
            logger.info("this watcher leads, with number %d", lease.number)
            await lead(lease, Fence(lease.number, began + LEASE_S))
            logger.warning("this watcher lost the lease with number %d: it follows", lease.number)
    finally:
        with suppress(Error):
            await on_lease_thread(lease.give_up)


async def lead(lease: Lease, fence: Fence) -> None:
    """Do the watcher's work until the lease has ended. If a part fails, its exception is raised."""
    parts = [asyncio.create_task(keep_lease(lease, fence))]
    changed = asyncio.Event()
    with fenced_by(fence):
        parts += [asyncio.create_task(watch_servers(changed)), asyncio.create_task(discover(changed))]
        parts += [asyncio.create_task(run_periodically(task)) for task in periodic_tasks()]
    try:
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
    for part in done:
        part.result()


async def keep_lease(lease: Lease, fence: Fence) -> None:
    """Return when another watcher has the lease, or when the database has not renewed it in time."""
    over = threading.Event()
    renewing = asyncio.ensure_future(on_lease_thread(partial(renew_lease, lease, fence, over)))
    try:
        while not renewing.done() and (left := fence.until - monotonic()) > 0:
            await asyncio.wait({renewing}, timeout=left)
    finally:
        over.set()
    if renewing.done():
        renewing.result()


def renew_lease(lease: Lease, fence: Fence, over: threading.Event) -> None:
    """Renew the lease until it is lost or over, without the event loop, whose work may be late."""
    while not over.wait(RENEW_S):
        began = monotonic()
        try:
            if not lease.renew():
                return
        except Error as error:
            logger.error("the lease was not renewed (%s)", error)
            connection.close()
        else:
            fence.until = began + LEASE_S


async def on_lease_thread(work: Callable[[], Result]) -> Result:
    """Run work on the thread of the lease, which keeps its session: the lease waits neither for a thread nor for a session that
    slow tasks hold."""

    def run() -> Result:
        try:
            return work()
        except Error:
            connection.close()
            raise

    return await asyncio.get_running_loop().run_in_executor(_LEASE_THREAD, run)


async def give_heartbeats() -> None:
    """Send heartbeats as long as both this loop and the one thread on which its parts reach the database run.

    While a statement waits for PostgreSQL, the loop alone sends them: a database that is slow is no fault of this process.
    """
    waits_for_database = getattr(connection, "keeps_waiting", lambda: False)
    while True:
        turn = asyncio.create_task(sync_to_async(heartbeat.beat)("watch"))
        while not (await asyncio.wait([turn], timeout=heartbeat.HEARTBEAT_S))[0]:
            if waits_for_database():
                heartbeat.beat("watch")
        await turn
        await asyncio.sleep(heartbeat.HEARTBEAT_S)


async def watch_servers(changed: asyncio.Event | None = None) -> None:
    """Watch every server until cancelled, including servers that are added or get another address or key meanwhile.

    Each server has tasks of its own, so that one which is slow or hangs delays no other one. changed: says that the list of
    servers is to be read at once.
    """
    changed = changed or asyncio.Event()
    watched: dict[tuple[object, ...], asyncio.Task[None]] = {}
    together = Together()
    async with asyncio.TaskGroup() as group:
        while True:
            changed.clear()
            try:
                rows = await sync_to_async(lambda: list(servers()))()
            except Error as error:
                logger.error("the database did not answer (%s); the servers stay as they are", error)
                await sync_to_async(close_old_connections)()
            else:
                found = {_connection(server): server for server in rows}
                together.servers = len(found)
                for gone in watched.keys() - found.keys():
                    watched.pop(gone).cancel()
                watched |= {
                    key: group.create_task(keep_watching(found[key], together)) for key in found.keys() - watched.keys()
                }
            with suppress(TimeoutError):
                async with asyncio.timeout(SERVERS_S):
                    await changed.wait()


def _connection(server: Server) -> tuple[object, ...]:
    environment = None if server.environment is None else server.environment.connection
    return server.pk, server.http_url, server.metrics_url, server.environment_id, server.leaving, environment


async def keep_watching(server: Server, together: Together) -> None:
    """Watch one server, and start again after any error, so that the other servers are not affected."""
    pause = SERVERS_S
    while True:
        begun = monotonic()
        try:
            await watch_server(server, together)
        except Exception as error:
            if await sync_to_async(_removed)(server):  # what was written of it last could not be kept
                return
            if monotonic() - begun > LONGEST_PAUSE_S:  # earlier failures are long past
                pause = SERVERS_S
            logger.exception("server %s is not watched: trying again in %.0f s", server.name, pause)
            with suppress(Error):
                await sync_to_async(server_state.server_lost)(server=server, reason=_not_watched(error))
            await sync_to_async(close_old_connections)()
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def _removed(server: Server) -> bool:
    try:
        return not Server.objects.filter(pk=server.pk).exists()
    except Error:
        return False


def _not_watched(error: Exception) -> str:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, DashboardError):
        return error.message
    return f"it tells what the dashboard cannot take ({type(error).__name__}); the log of watch says more"


async def watch_server(server: Server, together: Together) -> None:
    """Reconcile one server, store its metrics and advance its rollouts, until cancelled."""
    async with AsyncServerClient(server) as client, asyncio.TaskGroup() as group:
        reader = FeedReader()
        group.create_task(Reconciler(server, client, reader, together).run())
        group.create_task(Collector(client, reader, together).run())
        if server.environment is None or server.environment.name == PRODUCTION:  # rollouts move production's clients
            group.create_task(RolloutWatch(client, reader, together).run())
        group.create_task(NotedWatch(client, together).run())

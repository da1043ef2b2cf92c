"""`watch` over all servers of the database, while a test does something and waits for what follows from it."""

import asyncio
from collections.abc import Callable

from asgiref.sync import async_to_sync, sync_to_async

from dashboard.watch import watcher
from tests.dashboard.watch.test_watch import until


def watching(*phases: tuple[Callable[[], object], Callable[[], bool]]) -> None:
    """Watch all servers of the database; in each phase do something, then wait for its condition."""

    async def scenario() -> None:
        running = asyncio.create_task(watcher.watch_servers())
        try:
            for act, condition in phases:
                await sync_to_async(act)()
                await until(condition, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async_to_sync(scenario)()


def nothing() -> None:
    """Do nothing in a phase that only waits."""

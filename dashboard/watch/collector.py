"""Stores the live feed of one server as history."""

import logging
from contextlib import aclosing

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections

from dashboard.metrics.feed import FeedReader, Tick, follow_feed
from dashboard.metrics.services import ServerTick
from dashboard.servers.client import AsyncServerClient, Refused
from dashboard.servers.server_state import FEED, GPUS, VERSION, server_info_record
from dashboard.shared.exceptions import DashboardError
from dashboard.watch.together import Together

logger = logging.getLogger(__name__)


class Collector:
    """Stores the live feed until cancelled. It shares the reader with the reconciler."""

    def __init__(self, client: AsyncServerClient, reader: FeedReader, together: Together) -> None:
        self._client = client
        self._reader = reader
        self._together = together
        self._at = self._stored_at = 0  # the last second, and the last one that was stored; 0 after a failure
        self._gpus: list[str] | None = None  # the GPUs that were recorded
        self._instance = ""  # the process whose version was recorded
        self._trouble: str | None = None  # the recorded reason why its feed is not understood

    async def run(self) -> None:
        async with aclosing(follow_feed(self._client, self._reader)) as news:
            async for tick in news:
                if isinstance(tick, Tick):
                    await self._store(tick)
                elif isinstance(tick, Refused):
                    await self._not_understood(tick.message)
                else:
                    logger.debug("%s", tick.message)

    async def _not_understood(self, trouble: str) -> None:
        """Record once why a server's feed is not understood; "" if it is understood again.

        The reason may differ from event to event: the first is kept.
        """
        if self._trouble is not None and bool(self._trouble) == bool(trouble):
            return
        if trouble:
            logger.warning("server %s: what it streams has no metrics: %s", self._client.server.name, trouble)
        try:
            await sync_to_async(server_info_record)(server=self._client.server, key=FEED, value=trouble)
        except Error as error:
            logger.error("the state of the feed was not stored: %s", error)
            await sync_to_async(close_old_connections)()
        else:
            self._trouble = trouble

    async def _store(self, tick: Tick) -> None:
        previous, self._stored_at = self._stored_at, 0
        self._at = next_second(self._at, tick)
        try:
            await self._together.store(ServerTick(self._client.server, tick, self._at, previous))
            self._stored_at = self._at
            await self._not_understood("")
            await self._record_gpus([gpu["uuid"] for gpu in tick.process["gpus"]])
            await self._record_version(self._reader.instance)
        except Error as error:
            logger.error("one second of metrics was not stored: %s", error)
            await sync_to_async(close_old_connections)()

    async def _record_gpus(self, found: list[str]) -> None:
        """Record the GPUs of the server, so that pages know which charts to show."""
        if found != self._gpus:
            await sync_to_async(server_info_record)(server=self._client.server, key=GPUS, value=found)
            self._gpus = found

    async def _record_version(self, instance: str) -> None:
        """Record the server's version, once for each of its processes; a process that does not answer is asked again."""
        if instance == self._instance:
            return
        try:
            version = await self._client.version()
        except DashboardError as error:
            logger.debug("its version is not known: %s", error.message)
            return
        await sync_to_async(server_info_record)(server=self._client.server, key=VERSION, value=version)
        self._instance = instance


def next_second(last: int, tick: Tick) -> int:
    """Return the Unix second of a tick. Consecutive ticks get consecutive seconds, whatever their jitter."""
    nominal = int(tick.time)
    if tick.seconds < 1.5 and abs(nominal - last - 1) <= 1:
        return last + 1
    return max(nominal, last + 1)

"""The live feed of one server into history."""

import asyncio
import logging

from asgiref.sync import sync_to_async
from django.db import DatabaseError, close_old_connections

from dashboard.metrics.feed import FeedReader, Tick
from dashboard.metrics.services import metrics_store_tick
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.exceptions import DashboardError
from dashboard.watch.reconciler import Reconciler

logger = logging.getLogger(__name__)

RECONNECT_S = 0.5


class Collector:
    """Reads the feed for ever; tells the reconciler which process of the server it reads from."""

    def __init__(self, client: AsyncServerClient, reconciler: Reconciler) -> None:
        self._client = client
        self._reconciler = reconciler
        self._reader = FeedReader()
        self._at = 0

    async def run(self) -> None:
        while True:
            try:
                async for event in self._client.feed():
                    tick = self._reader.read(event)
                    self._reconciler.instance = self._reader.instance
                    if tick is not None:
                        await self._store(tick)
            except DashboardError as error:
                logger.debug("%s", error.message)
            await asyncio.sleep(RECONNECT_S)

    async def _store(self, tick: Tick) -> None:
        previous, self._at = self._at, next_second(self._at, tick)
        try:
            await sync_to_async(metrics_store_tick)(self._client.server, tick, self._at, previous)
        except DatabaseError as error:
            logger.error("one second of metrics was not stored: %s", error)
            await sync_to_async(close_old_connections)()


def next_second(last: int, tick: Tick) -> int:
    """The second that a tick is filed under: consecutive ticks get consecutive ones, whatever their jitter."""
    nominal = int(tick.time)
    if tick.seconds < 1.5 and abs(nominal - last - 1) <= 1:
        return last + 1
    return max(nominal, last + 1)

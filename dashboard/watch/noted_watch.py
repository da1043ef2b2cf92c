"""Reads the requests that stood out from one server, and stores them."""

import asyncio
import logging

from asgiref.sync import sync_to_async
from django.db import Error, close_old_connections

from dashboard.metrics.noted import Told, noted_store_all
from dashboard.servers.client import AsyncServerClient
from dashboard.shared.exceptions import DashboardError
from dashboard.watch.together import Together

logger = logging.getLogger(__name__)

READ_S = 10.0
STORE_S = 1.0  # what servers tell in this time is stored together
SILENT_S = 60.0  # the pause after a refusal, for example of a server that has no such requests


class NotedWatch:
    """Reads until it is cancelled. A restart reads the last spans again; they are stored once."""

    def __init__(self, client: AsyncServerClient, together: Together) -> None:
        self._client = client
        self._together = together
        self._instance = ""
        self._after = 0

    async def run(self) -> None:
        while True:
            pause = READ_S
            try:
                while await self.read():
                    pass
            except DashboardError as error:
                logger.debug("%s", error.message)
                pause = SILENT_S
            except Error as error:
                logger.error("the slow and failed requests were not stored: %s", error)
                await sync_to_async(close_old_connections)()
            await asyncio.sleep(pause)

    async def read(self) -> bool:
        """Read and store spans once. Return whether there may be more: more than the last one of a server was new."""
        answer = await self._client.noted_requests(self._after)
        if answer["instance"] != self._instance:
            again = self._after > 0  # the numbers of the new process may be lower
            self._instance, self._after = answer["instance"], 0
            if again:
                return True
        if not answer["spans"]:
            return False
        await self._together.do(noted_store_all, Told(self._client.server, answer), STORE_S)
        numbers = {span["number"] for span in answer["spans"]}
        self._after = max(numbers)
        return len(numbers) > 1

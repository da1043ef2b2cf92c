"""/ws/live/[?model=NAME][&server=NAME]: one message a second from each server, or from one server (live.py)."""

import asyncio
from collections.abc import Awaitable

from asgiref.sync import sync_to_async

from dashboard.metrics.live import LiveFeeds
from dashboard.models import Server
from dashboard.servers.selectors import server_get, servers
from dashboard.web.websockets import PushConsumer


class LiveConsumer(PushConsumer):
    def __init__(self, feeds: LiveFeeds) -> None:
        super().__init__()
        self._feeds = feeds

    async def prepare(self) -> Awaitable[None]:
        name = self.query("server")
        chosen = [await sync_to_async(server_get)(name)] if name else await sync_to_async(lambda: list(servers()))()
        return self._push(chosen, self.query("model"))

    async def _push(self, chosen: list[Server], model: str) -> None:
        async with asyncio.TaskGroup() as group:
            for server in chosen:
                group.create_task(self._pass_on(server, model))

    async def _pass_on(self, server: Server, model: str) -> None:
        async with self._feeds.subscribe(server) as messages:
            while True:
                message = await messages.get()
                await self.send(message.text(model))

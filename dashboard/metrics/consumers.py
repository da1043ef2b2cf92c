"""/ws/live/[?model=NAME][&environment=NAME|&server=NAME|&each=yes]: one message a second (live.py).

It is about the servers of an environment together, by default production; about one server; or about each server apart.
"""

import asyncio
from collections.abc import Awaitable

from asgiref.sync import sync_to_async

from dashboard.metrics.live import LiveFeeds, Subscription
from dashboard.models.environment import PRODUCTION
from dashboard.servers.selectors import servers, servers_chosen
from dashboard.web.websockets import PushConsumer


class LiveConsumer(PushConsumer):
    def __init__(self, feeds: LiveFeeds) -> None:
        super().__init__()
        self._feeds = feeds

    async def prepare(self) -> Awaitable[None]:
        return self._push(await self._subscriptions(), self.query("model"))

    async def _subscriptions(self) -> list[Subscription]:
        if self.query("each"):
            return [self._feeds.subscribe(server) for server in await sync_to_async(lambda: list(servers()))()]
        name, environment = self.query("server"), self.query("environment")
        chosen = await sync_to_async(servers_chosen)(server=name, environment=environment)
        if name:
            return [self._feeds.subscribe(chosen[0])]
        return [self._feeds.subscribe_sum(environment or PRODUCTION)]

    async def _push(self, subscriptions: list[Subscription], model: str) -> None:
        async with asyncio.TaskGroup() as group:
            for one in subscriptions:
                group.create_task(self._pass_on(one, model))

    async def _pass_on(self, subscription: Subscription, model: str) -> None:
        async with subscription as messages:
            number = 0
            while True:
                message = await messages.get()
                await self.send(message.text(model, number))
                number = message.number

"""Live charts: each web process has one subscription to a server's feed, which all WebSockets share.

The first subscriber starts the subscription and the last one stops it, because Daphne has no start-up hook. A slow subscriber
misses points and never delays the others. The points of an environment's servers are added up once for all subscribers.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import Error

from dashboard.metrics.feed import FeedReader, Tick, follow_feed
from dashboard.metrics.points import Lost, Message, Point, together
from dashboard.models import Server
from dashboard.servers.client import AsyncServerClient
from dashboard.servers.selectors import servers_of
from dashboard.shared.exceptions import NotFound

logger = logging.getLogger(__name__)

KEPT_MESSAGES = 3  # messages that a slow subscriber can fall behind; older ones are dropped
LATE_S = 1.5  # a sum waits for so long for the point of a server, and then goes on without it
LONGEST_SECOND_S = 1.5  # a longer tick tells of a gap before it, and is no second of a sum
SERVERS_S = 10.0

Key = TypeVar("Key")
OneFeed = TypeVar("OneFeed", bound="Feed")
Subscription = AbstractAsyncContextManager["asyncio.Queue[Message]"]


class Feed:
    """The queues of the subscribers of a feed, and the task that fills them while there are any."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._queues: set[asyncio.Queue[Message]] = set()
        self._task: asyncio.Task[None] | None = None
        self._newest: Message | None = None

    @property
    def idle(self) -> bool:
        return not self._queues

    def join(self) -> "asyncio.Queue[Message]":
        """Return a queue that holds the newest message, and gets every later one."""
        queue: asyncio.Queue[Message] = asyncio.Queue(KEPT_MESSAGES)
        self._queues.add(queue)
        if self._newest is not None:
            queue.put_nowait(self._newest)
        if self._task is None or self._task.done():  # done: the reading failed
            self._task = asyncio.create_task(self._read(), name=f"live feed of {self.name}")
        return queue

    async def leave(self, queue: "asyncio.Queue[Message]") -> None:
        self._queues.discard(queue)
        if self._queues or self._task is None:
            return
        task, self._task, self._newest = self._task, None, None
        await _end(task)

    def _hand_out(self, message: Message) -> None:
        message.follow(self._newest)
        self._newest = message
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(message)

    async def _read(self) -> None:
        raise NotImplementedError


class LiveFeed(Feed):
    """This process's one subscription to the feed of a server."""

    def __init__(self, server: Server) -> None:
        super().__init__(server.name)
        self._server = server
        self._heard_at = time.monotonic()  # the last second of metrics; at first the start

    @property
    def age_s(self) -> float:
        """Seconds since the server's last second of metrics, or since the start."""
        return time.monotonic() - self._heard_at

    async def _read(self) -> None:
        reader = FeedReader()
        async with AsyncServerClient(self._server) as client, aclosing(follow_feed(client, reader)) as news:
            async for tick in news:
                if isinstance(tick, Tick):
                    self._heard_at = time.monotonic()
                    self._hand_out(Point(self._server.name, tick, dict(reader.states)))
                elif not isinstance(self._newest, Lost):
                    self._hand_out(Lost(self._server.name, tick.message))


class SumFeed(Feed):
    """The sum of the feeds of an environment's servers: one point when each of them gave one, at the latest after LATE_S.

    A server that gives none is missing in the sum and named there. If all of them are lost, or there is none, the sum is lost.
    Servers that are added or removed are noticed after SERVERS_S.
    """

    def __init__(self, feeds: "LiveFeeds", environment: str) -> None:
        super().__init__(environment)
        self._feeds = feeds

    async def _read(self) -> None:
        keys: set[int] | None = None  # of the servers that are added up
        adding = asyncio.create_task(asyncio.sleep(0))
        try:
            while True:
                servers = await self._servers()
                if servers is not None and (now := {one.pk for one in servers}) != keys:
                    keys = now
                    await _end(adding)
                    adding = asyncio.create_task(self._add_up(servers))
                elif keys is None:
                    self._hand_out(Lost("", "the database does not say which servers there are"))
                    await asyncio.sleep(SERVERS_S)
                    continue
                await asyncio.wait([adding], timeout=SERVERS_S)
                if adding.done():
                    adding.result()
        finally:
            await _end(adding)

    async def _servers(self) -> list[Server] | None:
        """Return the servers of the environment, or None if the database does not answer."""
        try:
            return await sync_to_async(servers_of)(self.name)
        except NotFound:
            return []
        except Error as error:
            logger.warning(
                "the servers of %s are not known now (%s); the charts go on with those before", self.name, error
            )
            return None

    async def _add_up(self, servers: Sequence[Server]) -> None:
        news: asyncio.Queue[Message] = asyncio.Queue()
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
            for server in servers:
                queue = await stack.enter_async_context(self._feeds.subscribe(server))
                tasks.create_task(_pass_on(queue, news))
            if len(servers) == 1:
                while True:
                    self._hand_out(await news.get())
            await self._add_points([server.name for server in servers], news)

    async def _add_points(self, names: list[str], news: "asyncio.Queue[Message]") -> None:
        if not names:
            self._hand_out(Lost("", f"there is no server in {self.name}"))
        waiting = {name: deque[Point](maxlen=KEPT_MESSAGES) for name in names}
        silent: dict[str, str] = {}  # server -> why it is not waited for
        since = 0.0  # when the first of the waiting points arrived; 0 if none waits
        while True:
            left = since + LATE_S - time.monotonic() if since else None
            try:
                if news.empty():  # what has arrived is read even if it is late already
                    async with asyncio.timeout(left):
                        message = await news.get()
                else:
                    message = news.get_nowait()
            except TimeoutError:
                silent |= {name: f"{name} is late" for name, points in waiting.items() if not points}
            else:
                if isinstance(message, Lost):
                    silent[message.server] = message.reason
                elif isinstance(message, Point):
                    if message.tick.seconds < LONGEST_SECOND_S:
                        silent.pop(message.server, None)
                        waiting[message.server].append(message)
                    else:
                        silent[message.server] = f"{message.server} is late"
            if any(waiting.values()) and all(points or name in silent for name, points in waiting.items()):
                missing = [name for name, points in waiting.items() if not points]
                self._hand_out(
                    together([points.popleft() for points in waiting.values() if points], missing, self._newest)
                )
                since = 0.0
            elif len(silent) == len(names) and not isinstance(self._newest, Lost):
                self._hand_out(Lost("", f"none of {len(names)} servers answers: {next(iter(silent.values()))}"))
            if any(waiting.values()):
                since = since or time.monotonic()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _pass_on(queue: "asyncio.Queue[Message]", news: "asyncio.Queue[Message]") -> None:
    while True:
        await news.put(await queue.get())


class LiveFeeds:
    """The feeds that this process reads: one for each server with subscribers, and the sums of several of them."""

    def __init__(self) -> None:
        self._feeds: dict[int, LiveFeed] = {}
        self._sums: dict[str, SumFeed] = {}

    def __len__(self) -> int:
        return len(self._feeds)

    def ages(self) -> dict[str, float]:
        """Return the age of each feed in seconds, by the server's name."""
        return {feed.name: feed.age_s for feed in list(self._feeds.values())}

    def subscribe(self, server: Server) -> Subscription:
        """Yield a queue that receives the messages of a server's feed until the block ends."""
        assert server.pk is not None
        return _joined(self._feeds, server.pk, LiveFeed(server))

    def subscribe_sum(self, environment: str) -> Subscription:
        """Yield a queue that receives the messages of an environment's servers together; of only one, those of its feed."""
        return _joined(self._sums, environment, SumFeed(self, environment))


@asynccontextmanager
async def _joined(feeds: dict[Key, OneFeed], key: Key, new: OneFeed) -> AsyncIterator["asyncio.Queue[Message]"]:
    """Join the feed of a key, at first the new one, and remove it after its last subscriber."""
    feed = feeds.setdefault(key, new)
    queue = feed.join()
    try:
        yield queue
    finally:
        await feed.leave(queue)
        if feed.idle:
            feeds.pop(key, None)


FEEDS = LiveFeeds()  # those of this web process
